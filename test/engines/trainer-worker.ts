/**
 * A small GPU worker for tests, which may be killed, or be in a network namespace: it opens a trainer, and does what each line of its stdin says
 * (`started-trainer-worker.ts`).
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { batchOf } from '../../core/rl/learning/batch.ts';
import { lossOf, planOf, rowsOf } from '../../backends/testing/material.ts';
import { nodesPlace } from '../../backends/nodes/node-link.ts';
import { PrimeRlTrainer } from '../../backends/trainer/prime-rl.ts';
import { TorchTrainer } from '../../backends/trainer/torch.ts';
import type { OptimizerState } from '../../core/rl/run-state.ts';
import { closeProcesses } from '../../host/processes-open.ts';
import { holdSecret } from '../../host/project-secret.ts';

const [python, model, options] = process.argv.slice(2) as [string, string, string];
const {
  kind = 'torch',
  count = 1,
  ...ranks
} = JSON.parse(options) as {
  readonly kind?: 'torch' | 'prime-rl';
  readonly count?: number;
};
holdSecret(process.cwd());

const nodes = count > 1 ? { nodes: { count, place: nodesPlace(process.env)! } } : {};
const usual = { ranks: 1, checkpointInterval: 2, maxSteps: 1000, seqLen: 64, rankTimeoutS: 60, more: {} };
const trainer =
  kind === 'torch'
    ? new TorchTrainer({ python, ranks: 1, threads: 1, ...ranks, ...nodes })
    : new PrimeRlTrainer({ python, ...usual, ...ranks, ...nodes });
const rows = await rowsOf(model);
const plan = planOf({ loss: lossOf(kind === 'torch' ? 'grpo' : 'dppo') });
const states = await mkdtemp(path.join(tmpdir(), 'torch-worker-states-'));
let state: OptimizerState | null = null;

const operations: Readonly<Record<string, (given: string) => Promise<unknown>>> = {
  open: (folder) => trainer.open(folder, { lora: null, seed: 1 }),
  step: async (step) =>
    trainer.trainStep({ plan: { ...plan, step: Number(step) }, batch: batchOf(rows), referenceFolder: model }),
  logprobs: async () => (await (trainer as TorchTrainer).logprobs(rows, 1)).map((values) => [...values]),
  save: async () => (state = await trainer.saveOptimizer(await mkdtemp(path.join(states, 'state-')))),
  restore: () => trainer.restoreOptimizer(state),
  waits: () => Promise.resolve(trainer.waitsFor()),
  pids: () => (trainer as TorchTrainer).pids(),
  close: async () => {
    await trainer.close();
    await closeProcesses();
  },
};

for await (const line of createInterface(process.stdin)) {
  const [id, operation, given = ''] = line.split(' ') as [string, string, string?];
  const answer = operations[operation]!(given).then(
    (result) => ({ result: result ?? null }),
    (error: Error & { code?: string }) => ({ error: error.message, code: error.code }),
  );
  void answer.then((told) => process.stdout.write(`${JSON.stringify({ id, ...told })}\n`));
}
await rm(states, { recursive: true });
process.exit(0);
