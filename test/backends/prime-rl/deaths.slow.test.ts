/** What a death costs while prime-rl's trainer has a run: a stand-in dies where the real one was killed (test/stand-ins/prime-rl). */
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { after, before, describe, test } from 'node:test';
import { openPlace, trainersFolder } from '../../../backends/prime-rl/place.ts';
import { Bench, gaps } from './trained.ts';

const last = 3;

describe('a run that prime-rl trains', () => {
  let bench: Bench;
  let undisturbed: string[];

  before(async () => {
    bench = await Bench.make();
    const trainer = await bench.opened();
    undisturbed = await bench.steps(trainer, 1, last);
    await trainer.close();
  });
  after(() => bench.close());

  for (const kill of ['rank', 'launcher', 'both'] as const)
    test(`ends with the same versions, whatever kills its ${kill}, wherever`, async () => {
      for (const gap of gaps) {
        bench.plan([{ step: 2, after: gap, kill }]);
        const { digests, deaths } = await bench.throughDeaths(1, last);
        assert.deepEqual(digests, undisturbed, `killed after ${gap}`);
        // A rank whose launcher is gone may finish the step.
        const least = gap === 'metrics' || kill === 'launcher' ? 0 : 1;
        assert.ok(deaths <= 1 && deaths >= least, `${deaths} deaths after ${gap}`);
      }
    });

  test('ends with the same versions on two ranks, of which one dies', async () => {
    bench.plan([]);
    const two = await bench.throughDeaths(2, last);
    bench.plan([
      { step: 1, after: 'weights', kill: 'rank' },
      { step: 2, after: 'shards', kill: 'rank' },
      { step: 3, after: 'backward', kill: 'both' },
    ]);
    const killed = await bench.throughDeaths(2, last);
    assert.deepEqual([killed.digests, killed.deaths], [two.digests, 3]);
  });

  test('goes on by itself after a death between two steps, with the steps since the checkpoint repeated', async () => {
    bench.plan([{ step: 1, after: 'metrics', kill: 'both' }]);
    const trainer = await bench.opened();
    assert.deepEqual(await bench.steps(trainer, 1, last), undisturbed);
    await trainer.close();
  });

  test('is not done where a marker is there, and no row of metrics', async () => {
    bench.plan([{ step: 1, after: 'marker', kill: 'both' }]);
    await assert.rejects(bench.steps(await bench.opened(), 1, 1), { code: 'EngineDied' });
  });

  test('never starts beside ranks of a dead worker, and has nothing of what they left', async () => {
    bench.plan([{ step: 2, after: 'backward', kill: 'hang' }]);
    const worker = fork(fileURLToPath(new URL('./worker.ts', import.meta.url)), [bench.python, bench.model], {
      execArgv: ['--import', import.meta.resolve('tsx')],
    });
    const plan = process.env['STAND_IN_FAULTS']!;
    for (let i = 0; i < 1_000 && !existsSync(`${plan}.0.fired`); i++) await delay(50);
    const guards = guardsOf(worker.pid!);
    for (const pid of guards) process.kill(pid, 'SIGKILL'); // nobody hears of the worker's death
    const ended = once(worker, 'exit');
    worker.kill('SIGKILL');
    await ended;
    await delay(300);
    assert.ok(bench.processes().length > 0, 'its ranks live on');
    const left = readdirSync(trainersFolder());
    const place = await openPlace(trainersFolder());
    assert.deepEqual(bench.processes(), [], 'they are ended before anything else begins');
    const now = readdirSync(trainersFolder());
    assert.ok(now.includes(path.basename(place)) && left.some((name) => !now.includes(name)), 'their folder is gone');
  });

  test('ends with its worker, however that dies', async () => {
    bench.plan([{ step: 1, after: 'read', kill: 'hang' }]);
    const worker = fork(fileURLToPath(new URL('./worker.ts', import.meta.url)), [bench.python, bench.model], {
      execArgv: ['--import', import.meta.resolve('tsx')],
    });
    const plan = process.env['STAND_IN_FAULTS']!;
    for (let i = 0; i < 1_000 && !existsSync(`${plan}.0.fired`); i++) await delay(50);
    assert.ok(bench.processes().length > 0);
    worker.kill('SIGKILL');
    for (let i = 0; i < 200 && bench.processes().length > 0; i++) await delay(50);
    assert.deepEqual(bench.processes(), []);
  });

  test('is given up when its trainer gives no sign, and never before the time of its ranks', async () => {
    bench.plan([{ step: 1, after: 'read', kill: 'hang' }]);
    const trainer = await bench.opened({ rankTimeoutS: 1 });
    await assert.rejects(bench.step(trainer, 1), /gave no sign for 11 s \(step 1\)/);
    assert.deepEqual(bench.processes(), []);
  });
});

/** Guards of a worker’s trainers: Node processes whose command names the program. */
function guardsOf(worker: number): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        const parent = Number(readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)!.split(' ')[1]);
        return parent === worker && readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('processes.mjs');
      } catch {
        return false;
      }
    });
}
