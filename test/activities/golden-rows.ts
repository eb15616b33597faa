/** A run file for supervised training on recorded rows, which `test/data/golden-runs` compares with prime-rl. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { readSftData } from '../../load/data/sft-data.ts';
import { sha256 } from '../../store/file-store.ts';
import { OnnxTrainer } from '../../backends/trainer/onnx.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { loadTokenizer } from '../../engine/index.ts';
import { layout } from '../../runs/layout.ts';
import { trainDrawn } from './drawn-steps.ts';
import { goldenFolder, type GoldenStep, openGolden, plannedRows } from './golden-run.ts';
import { commitFirst, type Committed, openRoles } from './runs.ts';

/** Every step of the run on the rows of a file, through the real activities and the embedded engine. */
export async function playGoldenRows(
  t: TestContext,
  given: RunSpec,
  file: string,
): Promise<Pick<GoldenStep, 'rows' | 'loss' | 'gradientNorm' | 'learningRate'>[]> {
  const root = await mkdtemp(path.join(tmpdir(), 'ratchet-golden-'));
  t.after(() => rm(root, { recursive: true, force: true }));
  const { bytes } = await readSftData(path.join(goldenFolder, file));
  const rows = { ...given.data!.rows, sha256: sha256(bytes) };
  const test = await openGolden(root, { ...given, data: { ...given.data!, rows } }, 'tiny-chat');
  await test.store.put(layout.sftData(), bytes);
  const roles = openRoles(undefined, { engine: () => new OnnxTrainer({ threads: 1 }), tokenizer: loadTokenizer });
  t.after(() => roles.policyTrainer.close());
  let from: Committed = await commitFirst(test, roles);
  const steps: Awaited<ReturnType<typeof playGoldenRows>> = [];
  while (from.state.step < given.maxSteps) {
    const { plan, learningRate, metrics, ...next } = await trainDrawn(test, roles, from);
    const { loss, grad_norm: gradientNorm } = metrics as { loss: number; grad_norm: number };
    steps.push({ rows: await plannedRows(test.run, plan), loss, gradientNorm, learningRate });
    from = next;
  }
  return steps;
}
