/** Runs that prime-rl's own trainer trains on the CPU and the embedded server samples: its processes are killed in one step, and the GPU worker with them in another. `npm run test:engines` */
import assert from 'node:assert/strict';
import { mkdir, readdir } from 'node:fs/promises';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { processesIn } from '../../backends/prime-rl/processes.mjs';
import { temporaryFolder } from '../../backends/testing/material.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import { until } from '../eventually.ts';
import { type Forks, type PrimeRl, primeRl, startForks } from './prime-rl/installations.ts';
import { newestStart, trainerProcesses } from './prime-rl/processes.ts';
import { type StartedRun, startRun } from './started-run.ts';

const found = primeRl('head');
const skip = 'missing' in found ? found.missing : false;
const steps = 6;
let forks: Forks;

const config = (python: string, more: string): string => `
model = "preset:reverse-text-0.2m"
max_steps = ${steps}
batch_size = 16
rollouts_per_example = 4
learning_rate = 1e-3
max_async_level = 0
seq_len = 64
[sampling]
max_tokens = 6
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 4 }
[sft]
steps = 20
batch_size = 16
[checkpoints]
interval = 2
[difficulty_filter]
enabled = false
[trainer]
kind = "prime-rl"
program = "${python}"
ranks = 2
rank_timeout = 30
attn = "flash_attention_2"
compile = false
optim_cpu_offload = false
[trainer.loss]
type = "dppo"
[trainer.prime_rl.model]
ac = "None"
ac_offloading = "None"
${more}`;

describe('a run that prime-rl trains and the embedded server samples', { skip }, () => {
  before(async () => {
    forks = await startForks(found as PrimeRl);
    process.env['RATCHET_CODE_ROOTS'] = path.dirname(forks.python); // workers take a Python from named folders alone
  });
  after(() => forks.close());

  for (const [part, more] of [
    ['all weights', ''],
    ['adapters', '[lora]\nr = 4\n'],
  ] as const) {
    test(`trains ${part}; dead ranks, a dead launcher and a dead worker cost no rollout and no bit`, async (t) => {
      const folder = await temporaryFolder(t);
      const pending = path.join(folder, 'pending');
      await mkdir(pending);
      process.env['RATCHET_PENDING'] = pending;
      const started = await startRun(t, { folder, config: config(forks.python, more) });
      const calm = await started.handle.result();
      assert.deepEqual([calm.step, calm.ledger.isSound], [steps, true]);

      const struck = await started.startAgain('struck', {});
      for (const [step, victim] of [
        [2, 'rank'],
        [3, 'launcher'],
        [5, 'worker'],
      ] as const) {
        await until(
          `step ${step} in training`,
          async () => (await statusOf(struck))?.progress.training?.step === step,
          { everyMs: 10 },
        );
        await until(`a trainer in step ${step}`, () => hasRanks(pending), { everyMs: 10 });
        const at = newestStart(pending);
        const { launcher, ranks } = trainerProcesses(at);
        process.kill(
          victim === 'rank' ? ranks[1]! : victim === 'launcher' ? launcher : started.pids()['train worker']!,
          'SIGKILL',
        );
        if (victim === 'worker')
          await until('no process of a dead worker’s trainer', () => processesIn(at).length === 0);
      }
      const ended = await struck.result();
      assert.deepEqual([ended.step, ended.ledger.isSound], [steps, true]);
      assert.equal(ended.policyDigest, calm.policyDigest, 'the weights of the run that nobody disturbed');
      const state = await readdir(path.join(folder, 'outputs/struck/checkpoints', `step_${steps}`, 'optimizer'));
      assert.ok(state.includes('.metadata') && state.includes('__1_0.distcp'), state.join()); // prime-rl's, of both ranks
    });
  }
});

type Handle = StartedRun['handle'];

/** Before its first task a run has none. */
function statusOf(handle: Handle): Promise<RunStatus | null> {
  return handle.query<RunStatus>('status').catch(() => null);
}

function hasRanks(pending: string): boolean {
  try {
    return trainerProcesses(newestStart(pending)).ranks.length === 2;
  } catch {
    return false; // it is just being started
  }
}
