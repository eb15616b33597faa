/** `ratchet sweep` as it is typed, where nothing runs: what it plans, what it refuses, and what it says of what is committed. */
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { changeLines } from '../../cli/sweep/follow-sweep.ts';
import { changesOfSweep } from '../../cli/sweep/same-sweep.ts';
import { sweepLines } from '../../cli/sweep/sweep-table.ts';
import type { SweepInput, SweepRunStatus, SweepStatus } from '../../core/sweep/sweep.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { layout } from '../../runs/layout.ts';
import { openCommands } from './typed.ts';

const type = openCommands();

const words = `model = "preset:reverse-text-0.2m"
max_steps = 9
batch_size = 8
rollouts_per_example = 4
[sampling]
max_tokens = 10
[[env]]
id = "reverse-text"
`;
const lr = `[sweep]
run = "words.toml"
metric = "train/reward"
[sweep.settings]
learning_rate = [0.001, 0.003]
[sweep.halving]
rungs = 2
`;

async function project(t: TestContext, files: Readonly<Record<string, string>> = {}) {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-sweep-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  for (const [name, text] of Object.entries({ 'words.toml': words, 'lr.toml': lr, ...files }))
    await writeFile(path.join(folder, name), text);
  const ratchet = (...args: string[]) => type(folder, ['sweep', ...args]);
  return { folder, ratchet };
}

test('a plan lists the runs with their settings, the rungs, and what they take', async (t) => {
  const { ratchet } = await project(t);
  const { code, out } = await ratchet('lr.toml', '--dry-run');
  assert.equal(code, 0);
  assert.match(out, /^lr: 2 runs of words\.toml, 2 rows of settings × 1 seed$/m);
  assert.match(out, /^rungs at step 3, 9, by train\/reward \(max\): 12 steps of 18$/m);
  assert.match(out, /^ {2}lr-02 {2}learning_rate 0\.003$/m);
});

test('what would be no sweep is refused before anything starts, with what was expected', async (t) => {
  const bad = {
    'typo.toml': lr.replace('learning_rate', 'lerning_rate'),
    'same.toml': lr.replace('0.003', '0.001'),
    'eval.toml': lr.replace('train/reward', 'eval/words/reward/mean'),
    'value.toml': lr.replace('0.003', '"fast"'),
    'rungs.toml': lr.replace('rungs = 2', 'min_steps = 9'),
  };
  const { ratchet } = await project(t, bad);
  const refused = async (...args: string[]): Promise<string> => {
    const { code, out, err } = await ratchet(...args);
    assert.notEqual(code, 0, out);
    return err;
  };
  assert.match(await refused('typo.toml'), /row 1 \(lerning_rate 0\.001\) is no run of words\.toml:[^]*learning_rate/);
  assert.match(await refused('typo.toml'), /^1 problem in typo\.toml\n\ntypo\.toml {2}lerning_rate$/m);
  assert.match(await refused('same.toml'), /row 2 .* expected a run that differs from same-01, got the same settings/);
  assert.match(
    await refused('eval.toml'),
    /sweep\.metric: expected a metric that the runs have.*words\.toml has no \[eval\]/,
  );
  assert.match(await refused('value.toml'), /row 2 .*is no run of words\.toml/);
  assert.match(await refused('rungs.toml'), /expected a rung before the end of a run, got min_steps = 9 of 9 steps/);
  assert.match(await refused('none.toml'), /none\.toml/);
  assert.match(await refused('lr.toml', '--pause', '--cancel'), /--pause and --cancel: expected one of them, got both/);
  assert.match(await refused('lr', '--dry-run'), /--dry-run: expected the file of a sweep, FILE\.toml, got "lr"/);
});

test('a file that is not what its runs began with is refused, with what differs', async (t) => {
  const { folder, ratchet } = await project(t);
  const { spec } = await loadRunConfig('words.toml', {
    projectFolder: folder,
    run: 'lr-02',
    overrides: { learning_rate: '0.003' },
  });
  const own = path.join(folder, 'outputs/lr-02');
  await mkdir(own, { recursive: true });
  await writeFile(path.join(own, layout.run()), JSON.stringify({ schemaVersion: 1, name: 'lr-02', spec }));
  assert.equal((await ratchet('lr.toml', '--dry-run')).code, 0);
  // More rows behind the others, and how long a worker may be silent, change nothing of it.
  await writeFile(path.join(folder, 'lr.toml'), lr.replace('0.003]', '0.003, 0.01]'));
  await writeFile(path.join(folder, 'words.toml'), `heartbeat_timeout = 9\n${words}`);
  assert.equal((await ratchet('lr.toml', '--dry-run')).code, 0);
  await writeFile(path.join(folder, 'lr.toml'), lr.replace('0.003', '0.01'));
  const { code, err } = await ratchet('lr.toml', '--dry-run');
  assert.notEqual(code, 0);
  assert.match(err, /the run lr-02 was begun with other settings than row 2 \(learning_rate 0\.01\) has now:/);
  assert.match(err, /^ *learning_rate: was 0\.003, now 0\.01$/m);
  assert.match(err, /name another sweep: name = "…" in \[sweep\]/);
});

test('where no server runs, its file says how a sweep stands by what is committed', async (t) => {
  const { ratchet } = await project(t);
  const { code, out } = await ratchet('lr.toml', '--status');
  assert.equal(code, 0);
  assert.match(out, /^lr: not running · rung 1 of 2, to step 3 · 0 of 18 steps$/m);
  const { err } = await ratchet('lr', '--status');
  assert.match(err, /Nothing of Ratchet runs in/);
  assert.match(err, /sweep FILE\.toml --status says what the runs of that file have committed/);
});

test('what differs between a sweep under way and its file is said by the keys of the file', () => {
  const was: SweepInput = {
    name: 'lr',
    store: 'file:///nowhere/',
    config: 'words.toml',
    sent: { texts: { 'words.toml': words }, beside: {} },
    rows: [{ learning_rate: 0.001 }],
    runs: [{ name: 'lr-01-s1', row: 0, seed: 1, overrides: {} }],
    metric: { name: 'train/reward', goal: 'max', lastSteps: 1 },
    maxSteps: 9,
    halving: { eta: 3, rungs: 2, minSteps: null },
    atOnce: 1,
  };
  assert.deepEqual(changesOfSweep(was, structuredClone(was)), []);
  const now: SweepInput = {
    ...was,
    rows: [{ learning_rate: 0.01 }, {}],
    runs: [{ ...was.runs[0]!, seed: 2 }],
    metric: { name: 'entropy', goal: 'min', lastSteps: 1 },
    halving: null,
  };
  assert.deepEqual(changesOfSweep(was, now), [
    'metric: was train/reward, now entropy',
    'goal: was max, now min',
    'seeds: was 1, now 2',
    '[sweep.halving]: was eta 3, rungs 2, now nothing',
    'row 1: was learning_rate 0.001, now learning_rate 0.01',
    'row 2: was nothing, now as in the file',
  ]);
  const sent = { texts: { 'words.toml': `${words}\n` }, beside: {} };
  assert.deepEqual(changesOfSweep(was, { ...was, sent }), ['words.toml, or a file that it names, has another text']);
});

test('what has changed is told in the order in which it happens', () => {
  const run = (row: number, seed: number, rest: Omit<SweepRunStatus, 'name' | 'row' | 'seed'>): SweepRunStatus => {
    return { name: `lr-0${row + 1}-s${seed}`, row, seed, ...rest };
  };
  const waiting = { state: 'waiting', step: 0, value: null } as const;
  const status: SweepStatus = {
    name: 'lr',
    phase: 'training',
    pausedBecause: null,
    metric: { name: 'reward', goal: 'max', lastSteps: 1 },
    rows: [{ rate: 1 }, { rate: 2 }],
    rungSteps: [1, 2],
    rung: 0,
    decided: [],
    runs: [
      run(0, 1, { state: 'at its rung', step: 1, value: 0.5 }),
      run(0, 2, { state: 'at its rung', step: 1, value: 0.7 }),
      run(1, 1, { state: 'at its rung', step: 1, value: 0.4 }),
      run(1, 2, waiting),
    ],
    steps: { made: 3, full: 8 },
  };
  assert.deepEqual(changeLines(status, status), []);
  const standing = { seeds: 2, of: 2 };
  const decided: SweepStatus = {
    ...status,
    pausedBecause: 'lunch',
    rung: 1,
    decided: [
      {
        step: 1,
        survivors: [0],
        ranking: [
          { row: 0, mean: 0.6, standardError: 0.1, ...standing },
          { row: 1, mean: 0.5, standardError: 0.1, ...standing },
        ],
      },
    ],
    runs: [
      run(0, 1, { state: 'training', step: 1, value: 0.5 }),
      run(0, 2, { state: 'waiting', step: 1, value: 0.7 }),
      run(1, 1, { state: 'dropped', step: 1, value: 0.4, changed: ['rate=3 after step 0'] }),
      // It went further before the sweep was begun again.
      run(1, 2, { state: 'dropped', step: 3, value: 0.6 }),
    ],
  };
  assert.deepEqual(changeLines(status, decided), [
    'rung at step 1: 1 of 2 rows go on; 1 of the 1 dropped within the standard error of the last that goes on',
    'lr-01-s1  training  rate 1',
    'lr-02-s1  dropped at step 1: reward 0.4000  rate 2  steered: rate=3 after step 0',
    'lr-02-s2  dropped at step 1: reward 0.6000  rate 2',
    'paused: lunch. Continue with: npx ratchet-rl sweep lr --resume',
  ]);
  assert.equal(sweepLines(decided).at(-1), 'lr-02-s1 was steered: rate=3 after step 0; its row is rate 2');
  assert.deepEqual(changeLines(decided, { ...decided, pausedBecause: null }), ['resumed, after a pause (lunch)']);
});
