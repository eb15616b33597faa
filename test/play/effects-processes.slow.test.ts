/** Processes that play rollouts with effects, and are killed, or stopped and awakened, in the middle of them. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { temporaryFolder } from '../../backends/testing/material.ts';
import { randomStream } from '../../core/random.ts';
import { RolloutJournal } from '../../runs/rollouts/rollout-journal.ts';
import { FileStore } from '../../store/file-store.ts';
import { until } from '../eventually.ts';
import { childProgram, chunkPrefix, rolloutsOfChild, turnsOfChild } from './effects-child.ts';

const killsWanted = Number(process.env['RATCHET_EFFECT_KILLS'] ?? 40);

test(`${killsWanted} kills at random: a counter outside sees each once-only call once`, async (t) => {
  const random = randomStream('effect kills', 1);
  let [kills, repeated, inDoubt, calls] = [0, 0, 0, 0];
  while (kills < killsWanted) {
    const world = await newWorld(t);
    for (let attempt = 1; ; attempt++) {
      const child = start(world);
      await playing(child);
      const ended = once(child, 'exit');
      // The last attempt is left alone, so that the rollouts end.
      const isKilled = attempt < 12 && !(await Promise.race([ended.then(() => true), delay(random() * 150)]));
      if (isKilled) {
        child.kill('SIGKILL');
        kills += 1;
      }
      const [code] = (await ended) as [number | null];
      if (code === 0) break;
    }
    const found = await check(world);
    repeated += found.repeated;
    inDoubt += found.inDoubt;
    calls += found.calls;
  }
  t.diagnostic(JSON.stringify({ kills, calls, repeated_once: repeated, in_doubt: inDoubt }));
  assert.equal(repeated, 0);
});

test('a process that was stopped, and awakes when another one has taken its rollouts over, begins and settles nothing', async (t) => {
  const world = await newWorld(t);
  const zombie = start(world);
  t.after(() => zombie.kill('SIGKILL'));
  await until('it calls', () => existsSync(world.calls) && callsIn(world).length >= 5);
  zombie.kill('SIGSTOP');
  const next = start(world);
  assert.deepEqual(await once(next, 'exit'), [0, null]);
  const before = callsIn(world);
  zombie.kill('SIGCONT');
  let said = '';
  zombie.stdout!.on('data', (chunk: Buffer) => (said += chunk.toString()));
  assert.deepEqual(await once(zombie, 'exit'), [1, null]);
  assert.match(said, /RolloutTakenOver/);
  // A call that was begun before may still be made; its rollout is in doubt, if it is to be made once.
  const after = callsIn(world).slice(before.length);
  assert.ok(after.length <= rolloutsOfChild);
  assert.equal((await check(world)).repeated, 0);
});

interface World {
  readonly folder: string;
  readonly calls: string;
}

async function newWorld(t: TestContext): Promise<World> {
  const folder = await temporaryFolder(t);
  return { folder: path.join(folder, 'store'), calls: path.join(folder, 'calls') };
}

function start({ folder, calls }: World): ChildProcess {
  const args = ['--import', 'tsx', childProgram, folder, calls];
  return spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
}

async function playing(child: ChildProcess): Promise<void> {
  await once(child.stdout!, 'data');
}

function callsIn({ calls }: World): string[] {
  return existsSync(calls) ? readFileSync(calls, 'utf8').trim().split('\n') : [];
}

/** The calls that were made against the stored rollouts. */
async function check(world: World): Promise<{ repeated: number; inDoubt: number; calls: number }> {
  const journal = await RolloutJournal.open(new FileStore(world.folder), chunkPrefix, 'leases');
  const rollouts = journal.inOrder();
  assert.equal(rollouts.length, rolloutsOfChild);
  const made = new Map<string, string[]>();
  for (const [kind = '', word = '', key = ''] of callsIn(world).map((line) => line.split(' '))) {
    made.set(`${kind} ${word}`, [...(made.get(`${kind} ${word}`) ?? []), key]);
  }
  for (const [name, keys] of made) assert.equal(new Set(keys).size, 1, `${name} has one key`);
  for (const { outcome, turns, error, effects } of rollouts) {
    const said = turns.flatMap(({ toolCalls = [] }) => toolCalls);
    for (const { name, arguments: given } of outcome === 'ok' ? said : []) {
      assert.ok(made.has(`${name} ${(JSON.parse(given) as { word: string }).word}`), 'each call of it was made');
    }
    assert.ok(outcome === 'in_doubt' || (outcome === 'ok' && said.length === turnsOfChild), error);
    assert.equal(effects?.once_in_doubt ?? 0, outcome === 'in_doubt' ? 1 : 0);
  }
  const once = [...made].filter(([name]) => name.startsWith('once '));
  return {
    repeated: once.filter(([, keys]) => keys.length > 1).length,
    inDoubt: rollouts.filter(({ outcome }) => outcome === 'in_doubt').length,
    calls: callsIn(world).length,
  };
}
