import { RatchetError } from '../../core/errors.ts';
import type { CodeRef } from '../../core/settings/code.ts';
import type { LossSettings } from '../../core/settings/learning.ts';
import type { CustomLoss } from './gradient-computer.ts';
import { checkedLoss, type LossContext } from './loss.ts';
import { buildHeadGraph } from './train-graph.ts';
import { importChecked } from './user-code.ts';

async function loadCustomLoss(code: CodeRef): Promise<CustomLoss> {
  const { call, sha256 } = await importChecked(code, 'loss');
  const loss = call as unknown as (context: LossContext) => unknown;
  return { id: `${code.path}#${sha256}`, tokenLoss: checkedLoss(loss, code.path) };
}

export function customLossOf({ import: code }: LossSettings): Promise<CustomLoss> {
  if (code) return loadCustomLoss(code);
  throw new RatchetError('Unsupported', 'A custom loss needs its file: expected loss.import, got none.');
}

/**
 * Throws any error of a custom loss before the run's first step: loads it and builds its graph, which needs no model.
 */
export async function requireCustomLoss(code: CodeRef, { hasReference }: { hasReference: boolean }): Promise<void> {
  const { tokenLoss } = await loadCustomLoss(code);
  const anyOutput = { hiddenSize: 1, vocabularySize: 1, tiedEmbeddings: true };
  buildHeadGraph(anyOutput, hasReference ? 'custom_kl' : 'custom', { customLoss: tokenLoss });
}
