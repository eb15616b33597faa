/** A run that PyTorch trains on two ranks, one of which is killed in a step and one stopped in another; vLLM's stand-in samples. `npm run test:engines` */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { eventsQuery, type RunStatus } from '../../workflows/control/messages.ts';
import { temporaryFolder } from '../../backends/testing/material.ts';
import { writeStandInPython } from '../stand-ins/vllm/python.ts';
import { until } from '../eventually.ts';
import { startRun } from './started-run.ts';
import { ensureTorch } from './torch-cpu.ts';
import { ranksOf } from './torch-ranks.ts';

const found = await ensureTorch();
const skip = 'missing' in found ? `no PyTorch here: ${found.missing}` : false;

const config = (python: string, sampler: string): string => `
model = "preset:reverse-text-vllm-0.2m"
max_steps = 4
batch_size = 16
rollouts_per_example = 4
learning_rate = 1e-3
max_async_level = 0
[sampling]
max_tokens = 6
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 4 }
[sft]
steps = 52 # more than are stored at once
batch_size = 4
[trainer]
kind = "torch"
program = "${python}"
ranks = 2
rank_timeout = 5
advantage = "std_normalized"
[checkpoints]
interval = 2
[inference]
kind = "vllm"
program = "${sampler}"
[inference.vllm]
dtype = "float32"
max_model_len = 64
`;

test(
  'a rank that is killed and one that is stopped cost no rollout and no bit, and another number of ranks continues',
  { skip },
  async (t) => {
    assert('python' in found);
    const folder = await temporaryFolder(t);
    const started = await startRun(t, { folder, config: config(found.python, writeStandInPython(folder)) });
    const calm = await started.handle.result();
    assert.deepEqual([calm.step, calm.ledger.isSound], [4, true]);

    const struck = await started.startAgain('struck', {});
    const trains = async (step: number): Promise<boolean> => {
      const status = await struck.query<RunStatus>('status').catch(() => null); // before its first task it has none
      return status?.progress.training?.step === step;
    };
    for (const [step, signal] of [
      [2, 'SIGKILL'],
      [4, 'SIGSTOP'],
    ] as const) {
      await until(`step ${step} in training`, () => trains(step), { everyMs: 10 });
      process.kill(ranksOf(started.pids()['train worker']!)[1]!, signal);
    }
    const ended = await struck.result();
    assert.deepEqual([ended.step, ended.ledger.isSound], [4, true]);
    assert.equal(ended.policyDigest, calm.policyDigest, 'the weights of the run that nobody disturbed');

    const onward = await started.startAgain('struck', { 'trainer.ranks': '1', 'max-steps': '5' });
    const further = await onward.result();
    assert.deepEqual([further.step, further.ledger.isSound], [5, true]);
    const events = await onward.query(eventsQuery, 0);
    const changed = events.flatMap(({ text }) => (text.startsWith('another engine trains') ? text : []));
    assert.match(
      changed[0] ?? '',
      /^another engine trains from step 5 on: torch .*, 1 ranks, .*; before it was torch .*, 2 ranks, /,
    );
  },
);
