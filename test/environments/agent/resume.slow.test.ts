/** A program that goes on in snapshots, killed with its worker at every turn: no turn is sampled twice, and its folder is that of the snapshot. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { temporaryFolder } from '../../../backends/testing/material.ts';
import { trajectoryRows } from '../../../core/rl/rollout/trajectories.ts';
import { LeaseStore } from '../../../runs/sandboxes/lease-store.ts';
import { canSandbox, missingSandbox } from '../sandbox-here.ts';
import { type Life, live } from './resumed-life.ts';
import { programThatResumes, turns } from './resuming-program.ts';

const skip = (await canSandbox()) ? false : missingSandbox;

const of = (lives: readonly Life[], word: string): string[] =>
  lives.flatMap(({ said }) => said.filter((line) => line.startsWith(`${word} `)));

test(
  'a program that is killed with its worker at every turn samples none twice and goes on in the newest snapshot',
  { skip },
  async (t) => {
    const folder = await temporaryFolder(t);
    const store = `file:${folder}`;
    const program = await programThatResumes();
    const lives: Life[] = [];
    for (let turn = 1; turn <= turns; turn++) {
      const saved = turn === 1 ? [] : [`noted snapshot ${turn - 1}`];
      lives.push(await live({ program, store, hangsAt: turn }, [`samples ${turn}`, ...saved]));
    }
    lives.push(await live({ program, store }));
    const { record } = lives.at(-1)!;
    assert.equal(record?.outcome, 'ok', JSON.stringify(record));
    const sampled = of(lives, 'sampled');
    assert.equal(sampled.length, turns, 'no finished turn was sampled again');
    assert.equal(new Set(sampled).size, turns);
    // Each life begins with the turn that the one before had under way.
    assert.deepEqual(lives.map((life) => of([life], 'samples')[0]), [1, 1, 2, 3, 4, 5].map((turn) => `samples ${turn}`)); // prettier-ignore
    assert.deepEqual([record.program!.calls.kept, record.program!.calls.sampled], [turns - 1, 1]);
    assert.equal(record.program!.files!['resumed'], String(turns - 1), 'each snapshot was that of the newest state');
    assert.equal(record.program!.setAside, undefined);
    const heard = JSON.parse(record.program!.stdout) as string[];
    assert.deepEqual(record.turns.flatMap(({ heard: of = [] }) => of.map(({ content }) => content)), ['Go.', ...heard]); // prettier-ignore
    assert.equal(trajectoryRows(record.turns, 'interleaved').length, 1, 'its turns are one conversation');
    const leases = new LeaseStore(store);
    assert.equal((await leases.store.list('snapshots/')).length, 1, 'only the newest is kept');
  },
);
