/** `ratchet gc`: how long what is stored is kept, as the run's file and its team say; and what stays whatever they say. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { readdir, readFile, utimes, writeFile } from 'node:fs/promises';
import { hostname, userInfo } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { writeChange } from '../../runs/changes.ts';
import { layout, stepOf } from '../../runs/layout.ts';
import { outlivedRun } from '../../cli/stored/outlived-run.ts';
import { advance, commitFirst, makeRun, openRoles, runIn, type TestRun } from '../activities/runs.ts';
import { openCommands } from './typed.ts';

const typed = openCommands();
const dayMs = 24 * 3_600_000;
const withRunDays = { 'retention.run_days': '30' };

async function begun(t: TestContext, overrides: Readonly<Record<string, string>> = {}, folder?: string) {
  const made = folder === undefined ? await makeRun(t, overrides) : await runIn(folder, overrides, 'other');
  const key = layout.run();
  await made.store.put(key, encodeStored(key, { spec: made.spec, begunAt: '2026-11-01T00:00' }));
  return made;
}

/** As if nothing was written into it for so many days. */
async function untouchedFor({ folder }: TestRun, days: number): Promise<void> {
  const then = Date.now() / 1000 - days * 86_400;
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true }))
    if (entry.isFile()) await utimes(path.join(entry.parentPath, entry.name), then, then);
}

const gc = async ({ folder }: TestRun, ...args: readonly string[]) => {
  const { code, out, err } = await typed(path.dirname(folder), ['gc', ...args, '--store', 'file:.']);
  return `${code}: ${(out + err).trim()}`;
};

/** The answer of a Temporal server that no longer knows the run, which the commands of this file do not have. */
test('a run goes as a whole when its retention is over, and it is over: without a server nobody knows that', async (t) => {
  const run = await begun(t, withRunDays);
  await commitFirst(run, openRoles());
  await untouchedFor(run, 29);
  assert.equal(await outlivedRun(run.run, 30), null);
  await untouchedFor(run, 31);
  assert.equal(await outlivedRun(run.run, null), null, 'without retention no run goes');
  const said = await gc(run, 'words', '--yes');
  assert.match(said, /^0: words: stays, though its retention is over: no Temporal server here says whether it is over/);
  assert.ok(existsSync(path.join(run.folder, 'run.json')));
});

test('a run that somebody keeps, or that another one began at, stays', async (t) => {
  const run = await begun(t, withRunDays);
  await commitFirst(run, openRoles());
  assert.match(
    await gc(run, 'words', '--keep', 'figure 3 of the paper'),
    /^0: words: stays as a whole until npx ratchet-rl gc words --unkeep --store file:\.$/,
  );
  await untouchedFor(run, 31);
  assert.equal(
    (await outlivedRun(run.run, 30))?.staysBecause?.replace(/\d{4}-\d\d-\d\d/, 'DAY'),
    `${userInfo().username}@${hostname()} keeps it since DAY: figure 3 of the paper`,
  );
  assert.equal(await gc(run, 'words', '--unkeep'), '0: words: its retention holds again');
  const other = await begun(t, {}, path.dirname(run.folder));
  const key = layout.run();
  const fork = { from: 'words', step: 0 };
  await writeFile(
    path.join(other.folder, key),
    encodeStored(key, { spec: other.spec, begunAt: '2026-11-01T00:00', fork }),
  );
  assert.equal((await outlivedRun(run.run, 30))?.staysBecause, 'other began from its weights');
  const named = { ...other.spec, model: '/srv/outputs/words/weights/step_0' };
  await writeFile(path.join(other.folder, key), encodeStored(key, { spec: named, begunAt: '2026-11-01T00:00' }));
  assert.equal((await outlivedRun(run.run, 30))?.staysBecause, 'other began from its weights');
  assert.match(await gc(run, 'all', '--keep', 'x'), /^2: --keep and --unkeep: expected the name of one run, got all/);
});

test('rollouts of made steps stay for the days that the file says, or its team; a resume needs none of them', async (t) => {
  const kept = await begun(t, { 'retention.rollouts_days': '7' });
  const roles = openRoles();
  let last = await commitFirst(kept, roles);
  while (last.state.step < 8) last = await advance(kept, roles, last);
  const scored = async () => (await kept.store.list(layout.allRounds('main'))).filter(layout.isScored).map(stepOf);
  const before = await scored();
  assert.equal(await gc(kept, 'words', '--yes'), '0: words: nothing to remove');
  assert.deepEqual(await scored(), before);

  // Steps 1 to 4 were made eight days ago.
  for (const step of [0, 1, 2, 3, 4]) {
    const file = path.join(kept.folder, layout.commit('main', step));
    const commit = JSON.parse(await readFile(file, 'utf8')) as { committedAt: string };
    await writeFile(file, JSON.stringify({ ...commit, committedAt: new Date(Date.now() - 8 * dayMs).toISOString() }));
  }
  assert.match(await gc(kept, 'words'), /to remove them: npx ratchet-rl gc words --yes --store file:\.$/);
  assert.match(await gc(kept, 'words', '--yes'), /rollouts of steps before the oldest checkpoint/);
  assert.deepEqual([...new Set(await scored())], [5, 6, 7, 8]);
});

test('what a team keeps holds where the file says nothing', async (t) => {
  const run = await begun(t, { 'queue.team': 'research' });
  const roles = openRoles();
  let last = await commitFirst(run, roles);
  while (last.state.step < 8) last = await advance(run, roles, last);
  const here = path.dirname(run.folder);
  const file = (days: number) =>
    writeFile(path.join(here, 'roles.toml'), `[teams.research.retention]\nrollouts_days = ${days}\n`);
  await file(7);
  assert.equal(await gc(run, 'words'), '0: words: nothing to remove');
  await file(0.000_001);
  assert.match(await gc(run, 'words'), /^0: words: to remove \d+ files/);
});

test('gc of a run of somebody else asks for a role, and removes nothing before', async (t) => {
  const run = await begun(t);
  const roles = openRoles();
  let last = await commitFirst(run, roles);
  while (last.state.step < 8) last = await advance(run, roles, last);
  const here = path.dirname(run.folder);
  const login = `${userInfo().username}@${hostname()}`;
  await writeFile(
    path.join(here, 'roles.toml'),
    `[users.me]\nrole = "operator"\nlogins = ["${login}"]\n[users.ann]\nrole = "operator"\n[users.eve]\nrole = "admin"\n`,
  );
  const began = (identity: string, execution: string, time: string) =>
    writeChange(
      { ...run.run, kind: 'run' },
      {
        time,
        identity,
        principal: null,
        what: 'start',
        asked: '',
        step: null,
        workflow: 'words',
        execution,
        id: 'start',
      },
    );
  await began('ratchet ann@laptop 7', 'e2', '2026-11-02T00:00:00.000Z');
  assert.equal(
    await gc(run, 'words', '--yes'),
    '1: me is an operator (roles.toml): words belongs to ann, so gc --yes asks for the role operator of its owner or team (ann), or the role admin (eve).',
  );
  assert.match(await gc(run, 'words'), /^0: words: to remove \d+ files/);
  await began(`ratchet ${login} 8`, 'e1', '2026-11-01T00:00:00.000Z');
  assert.match(await gc(run, 'words', '--yes'), /^0: words: removed \d+ files/);
});
