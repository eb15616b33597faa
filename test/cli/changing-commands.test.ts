/** Which commands change something that others have: they ask for a role before they do anything. */
import assert from 'node:assert/strict';
import { readdir, stat, writeFile } from 'node:fs/promises';
import { hostname, userInfo } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import type { CommandUnknownOpts } from '@commander-js/extra-typings';
import { changingCommands, wordsOf } from '../../cli/changing-commands.ts';
import { commandGroups, program } from '../../cli/commands.ts';
import { writeChange } from '../../runs/changes.ts';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { layout } from '../../runs/layout.ts';
import { advance, commitFirst, makeRun, openRoles, type TestRun } from '../activities/runs.ts';
import { openCommands } from './typed.ts';

const typed = openCommands();
const login = `${userInfo().username}@${hostname()}`;

/** Each as somebody would type it. A command whose answer depends on its options is here with each that changes something. */
const changing: readonly string[] = [
  'train words.toml',
  'rl @ words.toml',
  'prime-rl words.toml',
  'vf-rl @ words.toml',
  'baseline words.toml',
  'eval --weights-dir weights',
  'eval checkpoints words',
  'eval schedule --run words --every 1h',
  'eval schedule pause nightly',
  'eval schedule resume nightly',
  'eval schedule trigger nightly',
  'eval schedule delete nightly',
  'eval run reverse-text -m small',
  'sweep table.toml',
  'sweep table.toml --cancel',
  'sweep words --pause lunch',
  'sweep words --resume',
  'sweep words --cancel',
  'rescore words',
  'gepa run reverse-text -m small',
  'gepa stop 1a2b3c4d',
  'gepa raise 1a2b3c4d 500',
  'gepa branch words',
  'gepa adopt words',
  'note words hello',
  'pause words',
  'resume words',
  'stop words',
  'stop words --now',
  'upgrade',
  'upgrade words',
  'set words learning_rate=0.001',
  'gc words --yes',
  'gc words --keep paper',
  'gc words --unkeep',
  'import words.tar',
  'fsck words --repair',
  'rewind words --step 1',
  'fork words --step 0 --name again',
  'sandboxes sweep',
  'uninstall words',
  'pool set gpus slice=60',
];

/** The same commands where they only look. */
const looking: readonly string[] = [
  'train words.toml --dry-run',
  'eval',
  'eval run reverse-text -m small --dry-run',
  'eval schedule list',
  'sweep words',
  'sweep table.toml --status',
  'sweep table.toml --dry-run',
  'gepa run reverse-text -m small --dry-run',
  'upgrade --dry-run',
  'gc words',
  'fsck words',
  'uninstall',
  'events words --changes',
];

/** A run of ann in `outputs`, in a folder whose file of roles has me with this role. */
async function runOfAnn(t: TestContext, role: string): Promise<{ readonly here: string; readonly run: TestRun }> {
  const run = await makeRun(t);
  await run.store.put(layout.run(), encodeStored(layout.run(), { spec: run.spec, begunAt: '2026-11-01T00:00' }));
  await advance(run, openRoles(), await commitFirst(run, openRoles()));
  const here = path.dirname(run.folder);
  await writeFile(
    path.join(here, 'roles.toml'),
    `[users.me]\nrole = "${role}"\nlogins = ["${login}"]\n[users.ann]\nrole = "operator"\n[users.eve]\nrole = "admin"\n`,
  );
  await startedBy(run, 'ratchet ann@laptop 7', { execution: 'e1', time: '2026-11-01T00:00:00.000Z' });
  return { here, run };
}

/** Records who started the run. */
function startedBy(
  { run }: TestRun,
  identity: string,
  when: { readonly execution: string; readonly time: string },
): Promise<void> {
  const start = { principal: null, what: 'start', asked: '', step: null, workflow: 'words', id: 'start' };
  return writeChange({ ...run, kind: 'run' }, { ...start, ...when, identity });
}

/** Every file with its size and its time of change. */
async function filesIn(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile()).map((entry) => path.join(entry.parentPath, entry.name));
  const seen = await Promise.all(
    files.map(async (file) => {
      const { size, mtimeMs } = await stat(file);
      return `${path.relative(folder, file)} ${size} ${mtimeMs}`;
    }),
  );
  return seen.toSorted();
}

async function everyCommand(): Promise<string[]> {
  const names = Object.values(commandGroups).flatMap((group) => Object.keys(group));
  const programs = await Promise.all(names.map((name) => program(name, '')));
  return programs.flatMap((root) => root.commands.flatMap((command) => actingIn(command, root)));
}

/** The words of each command that does something by itself. */
function actingIn(command: CommandUnknownOpts, root: CommandUnknownOpts): string[] {
  const acts = (command as unknown as { readonly _actionHandler: unknown })._actionHandler != null;
  return [...(acts ? [wordsOf(command, root)] : []), ...command.commands.flatMap((below) => actingIn(below, root))];
}

test('every command is placed: it changes something of others, or it does not', async () => {
  assert.deepEqual(Object.keys(changingCommands).toSorted(), (await everyCommand()).toSorted());
});

test('every command that may change something is tried by this file', () => {
  const tried = new Set(changing.flatMap((line) => beginnings(line)));
  const may = Object.entries(changingCommands).flatMap(([words, changes]) => (changes === 'no' ? [] : [words]));
  assert.deepEqual(
    may.filter((words) => !tried.has(words)),
    [],
  );
});

function beginnings(line: string): string[] {
  const words = line.split(' ');
  return words.map((_, i) => words.slice(0, i + 1).join(' '));
}

test('a viewer is refused by each before it does anything, without a server and without its arguments being looked at', async (t) => {
  const { here } = await runOfAnn(t, 'viewer');
  const before = await filesIn(here);
  for (const line of changing) {
    const { code, out, err } = await typed(here, line.split(' '));
    const words = err.match(
      /^me is a viewer \(roles\.toml\): (.*) asks for the role operator or admin \(ann, eve\)\.$/m,
    )?.[1];
    assert.ok(words !== undefined && line.startsWith(words), `${line}: ${out}${err}`);
    assert.deepEqual([code, out], [1, ''], line);
    assert.deepEqual(await filesIn(here), before, line);
  }
});

test('a viewer looks with the same commands', async (t) => {
  const { here } = await runOfAnn(t, 'viewer');
  for (const line of looking) {
    const { out, err } = await typed(here, line.split(' '));
    assert.doesNotMatch(out + err, /is a viewer/, line);
  }
});

for (const [what, args] of [
  ['fsck --repair', ['fsck', 'words', '--repair', '--store', 'file:.']],
  ['note', ['note', 'words', 'hello', '--store', 'file:.']],
  ['gc --yes', ['gc', 'words', '--yes', '--store', 'file:.']],
  ['gc --keep', ['gc', 'words', '--keep', 'paper', '--store', 'file:.']],
  ['rewind', ['rewind', 'words', '--step', '0', '--store', 'file:.']],
] as const)
  test(`${what} of somebody else's run is refused to an operator, who does it with their own`, async (t) => {
    const { here, run } = await runOfAnn(t, 'operator');
    const before = await filesIn(here);
    const refused = await typed(here, args);
    assert.deepEqual(
      [refused.code, refused.err.trim()],
      [
        1,
        `me is an operator (roles.toml): words belongs to ann, so ${what} asks for the role operator of its owner or team (ann), or the role admin (eve).`,
      ],
    );
    assert.deepEqual(await filesIn(here), before);
    if (what === 'rewind') return; // it would train
    await startedBy(run, `ratchet ${login} 8`, { execution: 'e0', time: '2026-10-01T00:00:00.000Z' });
    const { code, out, err } = await typed(here, args);
    assert.equal(code, 0, out + err);
  });
