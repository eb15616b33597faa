/**
 * prime-rl's trainer when its ranks, its launcher or all of them are killed, at each place of a step that leaves other files behind: every step comes out
 * as it does undisturbed, so none is lost and none is done twice. `npm run test:engines`
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync, rmSync, writeFileSync } from 'node:fs';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { processesIn } from '../../backends/prime-rl/processes.mjs';
import { lossOf, planOf, rowsOf, temporaryFolder, writePreset } from '../../backends/testing/material.ts';
import type { PrimeRlTrainer } from '../../backends/trainer/prime-rl.ts';
import { batchOf } from '../../core/rl/learning/batch.ts';
import { randomStream } from '../../core/random.ts';
import { until } from '../eventually.ts';
import { type Forks, type PrimeRl, primeRl, startForks } from './prime-rl/installations.ts';
import { newestStart, trainerProcesses } from './prime-rl/processes.ts';
import { olderSettingsOnCpu, openPrimeRl } from './prime-rl/trainer.ts';

const versions = ['head', 'v0.4.0'] as const;
const compareProgram = fileURLToPath(new URL('./prime-rl/compare_checkpoints.py', import.meta.url));

/** Where a trainer is when it is killed. A checkpoint is made every second step. */
const places = ['backward', 'checkpoint', 'update', 'weights', 'marker', 'some moment', 'some moment'] as const;
type Place = (typeof places)[number];
const targets = ['the first rank', 'the launcher', 'all'] as const;
type Target = (typeof targets)[number] | 'the last rank';

let folder = '';
let forks: Forks;

for (const version of versions) {
  const found = primeRl(version);
  const skip = 'missing' in found ? found.missing : false;

  describe(`prime-rl’s trainer, ${version}`, { skip }, () => {
    before(async () => {
      folder = await mkdtemp(path.join(tmpdir(), 'prime-rl-faults-'));
      await mkdir(path.join(folder, 'pauses'));
      await mkdir(path.join(folder, 'pending'));
      process.env['RATCHET_PENDING'] = path.join(folder, 'pending');
      forks = await startForks(found as PrimeRl, { pauses: path.join(folder, 'pauses') });
      await writePreset(path.join(folder, 'model'));
    });
    after(async () => {
      await forks.close();
      await rm(folder, { recursive: true });
    });

    for (const ranks of version === 'head' ? [1, 2] : [1]) {
      for (const target of ranks === 1 ? targets : (['the last rank', 'the launcher', 'all'] as const)) {
        test(`on ${ranks} ranks: ${target} killed at ${places.length} places costs no step and no bit`, async (t) => {
          const calm = await opened(t, version, ranks);
          const expected: string[] = [];
          for (let step = 1; step <= places.length; step++) expected.push(await train(calm, step));
          const struck = await opened(t, version, ranks);
          const random = randomStream('kills', ranks, target);
          let kills = 0;
          for (const [i, place] of places.entries()) {
            const step = i + 1;
            const mayBeDone = place === 'some moment' || (place === 'marker' && version === 'v0.4.0');
            const hit = await killAt(struck, { mayBeDone, step, place, target, waitMs: 400 * random() });
            kills += 1;
            const digest = hit ?? (await train(struck, step));
            assert.equal(digest, expected[i], `step ${step}, killed at ${place}`);
          }
          assert.equal(kills, places.length);
          assert.deepEqual(await differencesOf(t, calm, struck), []);
        });
      }
    }
  });
}

async function opened(t: TestContext, version: (typeof versions)[number], ranks: number): Promise<PrimeRlTrainer> {
  const trainer = openPrimeRl(forks.python, { ranks, ...(version === 'head' ? {} : olderSettingsOnCpu) });
  t.after(() => trainer.close());
  await trainer.open(path.join(folder, 'model'), { lora: null, seed: 1 });
  return trainer;
}

/** Each step has rows of its own: one that is left out, done twice or done with another's rows gives other weights. */
async function train(trainer: PrimeRlTrainer, step: number): Promise<string> {
  const model = path.join(folder, 'model');
  const rows = await rowsOf(model, { seed: step });
  const plan = planOf({ loss: lossOf('dppo'), step, learningRate: 1e-3 });
  const outcome = await trainer.trainStep({ plan, batch: batchOf(rows), referenceFolder: model });
  assert.equal(outcome.applied, true, outcome.reason);
  return outcome.digest;
}

/** Kills at a place in a step. Gives the digest where the step was done all the same. */
async function killAt(
  trainer: PrimeRlTrainer,
  {
    step,
    place,
    target,
    waitMs,
    mayBeDone,
  }: {
    readonly step: number;
    /** Whether all of the step can be there already. */
    readonly mayBeDone: boolean;
    readonly place: Place;
    readonly target: Target;
    readonly waitMs: number;
  },
): Promise<string | null> {
  const isMoment = place === 'some moment';
  const pause = path.join(folder, 'pauses', place);
  rmSync(`${pause}.reached`, { force: true }); // of the test before
  if (!isMoment) writeFileSync(pause, '');
  const done = train(trainer, step).then(
    (digest) => ({ digest }),
    (error: Error & { readonly code?: string }) => ({ error }),
  );
  let ended = false;
  void done.then(() => (ended = true));
  if (isMoment) await delay(waitMs);
  else
    await until(`a trainer at ${place} of step ${step}`, () => existsSync(`${pause}.reached`) || ended, { everyMs: 5 });
  const at = newestStart(path.join(folder, 'pending'));
  kill(at, target);
  const outcome = await done;
  if (!('error' in outcome)) {
    assert.ok(mayBeDone, `step ${step} was done although its trainer was killed at ${place}`);
    return outcome.digest;
  }
  assert.equal(outcome.error.code, 'EngineDied', outcome.error.message);
  assert.deepEqual(processesIn(at), [], 'no process is left beside the next one');
  return null;
}

/** A trainer that is just being started has no ranks yet. */
function kill(at: string, target: Target): void {
  const { launcher, ranks } = trainerProcesses(at);
  const victims = {
    'the first rank': ranks.slice(0, 1),
    'the last rank': ranks.slice(-1),
    'the launcher': [launcher],
    all: [launcher, ...ranks],
  }[target];
  for (const pid of victims.length > 0 ? victims : [launcher]) process.kill(pid, 'SIGKILL');
}

/** Names of entries of the last checkpoints that differ: weights in float32, moments, schedule. prime-rl's own counts of tokens begin anew with each start. */
async function differencesOf(t: TestContext, ...trainers: readonly PrimeRlTrainer[]): Promise<string[]> {
  const states: string[] = [];
  for (const trainer of trainers) {
    const state = await temporaryFolder(t);
    await trainer.saveOptimizer(state);
    states.push(state);
  }
  const { stdout } = await promisify(execFile)(forks.python, [compareProgram, ...states]);
  const [compared] = JSON.parse(stdout) as [{ readonly entries: number; readonly differ: readonly string[] }];
  assert.ok(compared.entries > 50, `${compared.entries} entries`);
  return compared.differ.filter((name) => !name.includes('.progress.'));
}
