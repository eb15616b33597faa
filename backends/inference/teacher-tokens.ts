import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { ChatTokenizer, describeAdapter, presetFiles, readTextFiles } from '../../engine/index.ts';

/** What the policy calls a token. */
export interface NamedToken {
  readonly id: number;
  readonly text: string;
}

/** Whether a folder of weights, or what its adapter was trained on, has the tokenizer of the policy. Throws where either has none. */
export async function hasSameTokenizer(folder: string, policy: string): Promise<boolean> {
  const [its, own] = await Promise.all([tokenizerOf(folder), tokenizerOf(policy)]);
  return JSON.stringify(JSON.parse(its)) === JSON.stringify(JSON.parse(own));
}

async function tokenizerOf(model: string): Promise<string> {
  if (model.startsWith('preset:')) return presetFiles(model)['tokenizer.json']!;
  try {
    return await readFile(path.join(model, 'tokenizer.json'), 'utf8');
  } catch (error) {
    const adapter = await describeAdapter(model);
    if (adapter === null) throw error;
    return readFile(path.join(adapter.baseFolder, 'tokenizer.json'), 'utf8');
  }
}

const Vocabulary = z.object({
  added_tokens: z.array(z.object({ id: z.int() })).default([]),
  model: z.object({
    vocab: z.union([z.record(z.string(), z.int()), z.array(z.unknown()).transform((all) => all.length)]),
  }),
});

/** So many say whether two vocabularies are the same. */
const tokensLookedAt = 16;

/** A few tokens from all over the policy's vocabulary, the first and the last included; null where its tokenizer is not here. */
export async function policyTokens(model: string): Promise<readonly NamedToken[] | null> {
  const files = model.startsWith('preset:') ? presetFiles(model) : await readTextFiles(model);
  const { 'tokenizer.json': tokenizer, 'tokenizer_config.json': config } = files;
  if (tokenizer === undefined || config === undefined) return null;
  const own = new ChatTokenizer({ tokenizer, config }, model);
  const ids = idsIn(tokenizer);
  const last = Math.min(tokensLookedAt, ids.length) - 1;
  return Array.from({ length: last + 1 }, (_, i) => {
    const id = ids[Math.round((i * (ids.length - 1)) / Math.max(1, last))]!;
    return { id, text: own.tokenText(id) };
  });
}

function idsIn(tokenizer: string): number[] {
  const { added_tokens: added, model } = Vocabulary.parse(JSON.parse(tokenizer));
  const ids =
    typeof model.vocab === 'number' ? Array.from({ length: model.vocab }, (_, id) => id) : Object.values(model.vocab);
  return [...new Set([...ids, ...added.map(({ id }) => id)])].toSorted((a, b) => a - b);
}
