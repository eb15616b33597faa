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

const steps = 6;

interface Kind {
  readonly version: 'head' | 'v0.4.0';
  readonly part: string;
  readonly ranks: number;
  /** Tables and keys of the run file, the trainer's last. */
  readonly more: string;
  readonly trainer: string;
}

const warmUp = '[sft]\nsteps = 20\nbatch_size = 16\n';
const savesNoMemory = `attn = "flash_attention_2"
compile = false
optim_cpu_offload = false
[trainer.prime_rl.model]
ac = "None"
ac_offloading = "None"
`;
const kinds: readonly Kind[] = [
  { version: 'head', part: 'all weights', ranks: 2, more: warmUp, trainer: savesNoMemory },
  { version: 'head', part: 'adapters', ranks: 2, more: `${warmUp}[lora]\nr = 4\n`, trainer: savesNoMemory },
  // It has no warm-up, and saves no memory by default.
  { version: 'v0.4.0', part: 'all weights', ranks: 1, more: '', trainer: 'attn = "sdpa"\n' },
];

const config = (python: string, { ranks, more, trainer }: Kind): string => `
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
[checkpoints]
interval = 2
[difficulty_filter]
enabled = false
${more}
[trainer.loss]
type = "dppo"
[trainer]
kind = "prime-rl"
program = "${python}"
ranks = ${ranks}
rank_timeout = 30
${trainer}`;

for (const version of ['head', 'v0.4.0'] as const) {
  const found = primeRl(version);
  const skip = 'missing' in found ? found.missing : false;

  describe(`a run that prime-rl ${version} trains and the embedded server samples`, { skip }, () => {
    let forks: Forks;
    before(async () => {
      forks = await startForks(found as PrimeRl);
      process.env['RATCHET_CODE_ROOTS'] = path.dirname(forks.python); // workers take a Python from named folders alone
    });
    after(() => forks.close());

    for (const kind of kinds.filter((one) => one.version === version)) {
      const { part, ranks } = kind;
      test(`trains ${part}; dead ranks, a dead launcher and a dead worker cost no rollout and no bit`, async (t) => {
        const folder = await temporaryFolder(t);
        const pending = path.join(folder, 'pending');
        await mkdir(pending);
        process.env['RATCHET_PENDING'] = pending;
        const started = await startRun(t, { folder, config: config(forks.python, kind) });
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
          await until(`a trainer in step ${step}`, () => hasRanks(pending, ranks), { everyMs: 10 });
          const at = newestStart(pending);
          const { launcher, ranks: pids } = trainerProcesses(at);
          process.kill(
            victim === 'rank' ? pids.at(-1)! : victim === 'launcher' ? launcher : started.pids()['train worker']!,
            'SIGKILL',
          );
          if (victim === 'worker')
            await until('no process of a dead worker’s trainer', () => processesIn(at).length === 0);
        }
        const ended = await struck.result();
        assert.deepEqual([ended.step, ended.ledger.isSound], [steps, true]);
        assert.equal(ended.policyDigest, calm.policyDigest, 'the weights of the run that nobody disturbed');
        const state = await readdir(path.join(folder, 'outputs/struck/checkpoints', `step_${steps}`, 'optimizer'));
        assert.ok(state.includes('.metadata') && state.includes(`__${ranks - 1}_0.distcp`), state.join()); // prime-rl's, of all ranks
      });
    }
  });
}

type Handle = StartedRun['handle'];

/** Before its first task a run has none. */
function statusOf(handle: Handle): Promise<RunStatus | null> {
  return handle.query<RunStatus>('status').catch(() => null);
}

function hasRanks(pending: string, count: number): boolean {
  try {
    return trainerProcesses(newestStart(pending)).ranks.length === count;
  } catch {
    return false; // it is just being started
  }
}
