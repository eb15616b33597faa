import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createOpenRun, type OpenedRun, type TakenOver, type TrainRunInput } from '../../activities/open-run.ts';
import { nothingAsked, type PolicyVersion } from '../../core/rl/run-state.ts';
import { servedPolicy } from '../../runs/run-access.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { openEnvironment } from '../../backends/environments/index.ts';
import { appendMetrics, readMetrics } from '../../runs/metrics/metrics.ts';
import { openRunStore } from '../../store/index.ts';
import { putJson } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';
import { hasCode } from '../store/store.contract.ts';
import { advance, commitFirst, configText, openRoles, runIn } from './runs.ts';

const wordsFile = fileURLToPath(new URL('../../environments/reverse-text/index.ts', import.meta.url));

/** A project with one config; `running` holds the workflows that Temporal says are running. */
async function project(t: TestContext, text = configText) {
  const projectFolder = await mkdtemp(path.join(tmpdir(), 'ratchet-project-'));
  t.after(() => rm(projectFolder, { recursive: true, force: true }));
  await writeFile(path.join(projectFolder, 'words.toml'), text);
  const running = new Set<string>();
  const openRun = createOpenRun({
    projectFolder,
    whatSearchAttributesLack: () => Promise.resolve(null),
    isWorkflowRunning: (id) => Promise.resolve(running.has(id)),
  });
  const open = (more: Partial<Exclude<TrainRunInput, string>> = {}, workflowId = 'words', executionId = 'first') =>
    openRun({ config: 'words.toml', ...more }, workflowId, executionId);
  return { projectFolder, outputs: path.join(projectFolder, 'outputs'), running, open, openRun };
}

describe('opening a run', () => {
  test('a path alone is enough: the run is named after it and begins at nothing', async (t) => {
    const { openRun, outputs } = await project(t);
    const opened = await openRun('words.toml', 'words', 'first');
    assert.deepEqual(
      [opened.handle.name, opened.handle.lineage, opened.head, opened.warnings],
      ['words', 'main', null, []],
    );
    assert.equal(opened.spec.maxSteps, 12);
    assert(opened.datasets[0]!.datasetLength > 100);
    assert.deepEqual(await readdir(outputs), ['words']);
  });

  test('a fork that was cut off is refused with what finishes it, and nothing is written', async (t) => {
    const { openRun, outputs, projectFolder } = await project(t);
    const { spec } = await loadRunConfig('words.toml', { projectFolder });
    const store = openRunStore(spec.store.uri, 'words');
    await putJson(store, layout.run(), { schemaVersion: 1, name: 'words', fork: { from: 'others', step: 4 }, spec });
    await assert.rejects(
      openRun('words.toml', 'words', 'first'),
      hasCode('ConfigInvalid', 'not finished', 'npx ratchet-rl fork others --step 4 --name words'),
    );
    assert.deepEqual(await readdir(path.join(outputs, 'words')), ['run.json']);
  });

  test('a workflow id or a name that reads as a path is refused at the door, and nothing is written', async (t) => {
    const { openRun, open, projectFolder } = await project(t);
    for (const id of ['../../etc/x', '/etc/x', '.hidden', 'a/b', 'a\\b', 'a b', 'x\n', '', `a${'b'.repeat(255)}`]) {
      await assert.rejects(
        openRun('words.toml', id, 'execution'),
        hasCode('ConfigInvalid', 'cannot drive a run'),
        JSON.stringify(id),
      );
    }
    for (const run of ['../../etc/x', '/etc/x', '.hidden', 'A', '', `a${'b'.repeat(64)}`]) {
      await assert.rejects(open({ run }), hasCode('ConfigInvalid'), JSON.stringify(run));
    }
    assert.deepEqual(await readdir(projectFolder), ['words.toml']);
    await openRun('words.toml', 'words-2026-11-21T16:57:45Z', 'execution');
  });

  test('the time it began at is told on every later day, and a run that is older than this opens without', async (t) => {
    const { open, outputs } = await project(t);
    t.mock.timers.enable({ apis: ['Date'], now: new Date(2026, 10, 26, 14, 5) });
    assert.equal((await open()).handle.begunAt, '2026-11-26T14:05');
    t.mock.timers.setTime(new Date(2026, 10, 29, 3, 0).getTime());
    const again = await open({}, 'words', 'another day');
    assert.equal(again.handle.begunAt, '2026-11-26T14:05');
    assert.equal(
      (await servedPolicy(again.handle, { step: 0, weights: 'weights/step_0/' } as PolicyVersion)).templateTime,
      '2026-11-26T14:05',
      'as policy servers are told it',
    );
    const record = path.join(outputs, 'words', layout.run());
    const { begunAt: _, ...older } = JSON.parse(await readFile(record, 'utf8')) as Record<string, unknown>;
    await writeFile(record, JSON.stringify(older));
    assert.equal((await open()).handle.begunAt, undefined);
    await writeFile(record, JSON.stringify({ ...older, begunAt: 'yesterday' }));
    await assert.rejects(open(), hasCode('CheckpointDamaged', 'when it was begun'));
  });

  test('opened twice by the same workflow, it is the same run', async (t) => {
    const { open } = await project(t);
    assert.deepEqual(await open(), await open());
  });

  test('a run that stopped is found where it stands, also by another workflow', async (t) => {
    const { open, outputs } = await project(t);
    await open();
    const test = await runIn(outputs, {}, 'words');
    const roles = openRoles();
    const last = await advance(test, roles, await commitFirst(test, roles));
    const { head } = await open({}, 'words-again');
    assert.deepEqual([head!.commit.step, head!.sha256], [1, last.parent]);
    assert.deepEqual(head!.commit.state, last.state);
  });

  test('it is told whether the run had reached its end, and rows that its metrics are short of are written', async (t) => {
    const { open, outputs } = await project(t);
    const { handle } = await open({ overrides: { 'max-steps': '1' } });
    const made = await runIn(outputs, { 'max-steps': '1' }, 'words');
    const test = { ...made, run: { ...made.run, spec: handle.spec } };
    const roles = openRoles();
    const first = await commitFirst(test, roles);
    assert.equal((await open()).hadEnded, false);
    await advance(test, roles, first);
    assert.equal((await open()).hadEnded, true);
    assert.equal((await open({ overrides: { 'max-steps': '5' } })).hadEnded, true, 'by the settings of its time');
    const lines = (await readFile(path.join(test.folder, 'metrics.jsonl'), 'utf8')).trim().split('\n');
    assert.deepEqual(
      lines.map((line) => (JSON.parse(line) as { step: number }).step),
      [1],
    );
  });

  test('a head that does not continue its parent is refused', async (t) => {
    const { open, outputs } = await project(t);
    await open();
    const test = await runIn(outputs, {}, 'words');
    const roles = openRoles();
    const first = await commitFirst(test, roles);
    await advance(test, roles, { ...first, parent: '0'.repeat(64) });
    await assert.rejects(open(), hasCode('CheckpointDamaged', layout.commit('main', 1), 'does not continue'));
  });

  test('a newest commit that is a copy of an older one is refused, and named', async (t) => {
    const { open, outputs } = await project(t);
    await open();
    const test = await runIn(outputs, {}, 'words');
    const roles = openRoles();
    await advance(test, roles, await commitFirst(test, roles));
    await test.store.put(layout.commit('main', 1), (await test.store.read(layout.commit('main', 0)))!);
    await assert.rejects(open(), hasCode('CheckpointDamaged', layout.commit('main', 1), 'found that of step 0'));
  });

  test('a loss or an advantage that cannot be is refused before the run begins, which goes well once it is mended', async (t) => {
    const { open, outputs, projectFolder } = await project(
      t,
      `${configText}\n[trainer.loss]\ntype = "custom"\nimport = "./loss.js"\n\n[trainer.advantage]\ntype = "custom"\nimport = "./advantage.js"\n`,
    );
    const write = (name: string, text: string): Promise<void> => writeFile(path.join(projectFolder, name), text);
    await write('advantage.js', 'export default 1;');
    await write('loss.js', 'export default () => { throw new Error("no luck"); };');
    await assert.rejects(open(), hasCode('Unsupported', 'advantage.js', 'expected a function, got a number'));
    await write('advantage.js', 'export default (rewards) => rewards;');
    await assert.rejects(open(), hasCode('Unsupported', 'loss.js', 'while its graph was built', 'no luck'));
    await write('loss.js', 'export default ({ advantages }) => advantages;');
    await assert.rejects(open(), hasCode('Unsupported', 'loss.js', 'depends on logprobs'));
    await write('loss.js', 'export default ({ logprobs, operators }) => operators.negate(logprobs);');
    await open();
    assert.deepEqual(await readdir(outputs), ['words']);
  });

  test('each opening has logs of its own', async (t) => {
    const { open, outputs } = await project(t);
    const { handle } = await open();
    assert.equal(handle.attempt, 1);
    const { store } = await runIn(outputs, {}, 'words');
    await store.append(layout.log(1, 'train'), 'a line\n');
    await store.append(layout.log(11, 'train'), 'a line\n');
    assert.equal((await open()).handle.attempt, 12);
  });
});

describe('a run keeps its identity', () => {
  test("an environment of one's own that was changed since is continued with, and the run says so", async (t) => {
    const { projectFolder, openRun } = await project(t);
    const file = path.join(projectFolder, 'own.ts');
    const code = (name: string): string =>
      `import { loadEnvironment as words } from ${JSON.stringify(wordsFile)};\nexport const loadEnvironment = () => ({ ...words({}), name: '${name}' });`;
    await writeFile(file, code('first'));
    await writeFile(path.join(projectFolder, 'own.toml'), configText.replace('"reverse-text"\n', '"./own.ts"\n'));
    const first = await openRun('own.toml', 'own', 'first');
    const [entry] = first.spec.environments;
    assert.deepEqual([entry!.id, entry!.name, first.warnings.length], [file, 'own', 1]);
    assert.deepEqual((await openRun('own.toml', 'own', 'first')).warnings, first.warnings);

    await writeFile(file, code('second'));
    const again = await openRun('own.toml', 'own', 'second');
    assert.notEqual(again.spec.environments[0]!.sha256, entry!.sha256);
    assert.match(
      again.warnings.join('\n'),
      /the environment own was changed since this run began: .*continues with it as it is now/,
    );
    // The change is reported, and the first execution's work is not continued with other code.
    await assert.rejects(
      openEnvironment({ ...entry!, args: { fresh: true } }),
      hasCode('ConfigInvalid', 'was changed in the middle of its run'),
    );
  });

  test('what makes it another run is refused, each setting with its old and its new value', async (t) => {
    const { open } = await project(t);
    await open();
    const overrides = { seed: '4', 'sampling.temperature': '0.5', 'env.0.args': '{ max_length = 4 }' };
    await assert.rejects(
      open({ overrides }),
      hasCode(
        'ConfigInvalid',
        'seed: was 3, now 4',
        '[sampling] temperature: was 1, now 0.5',
        '[[env]] reverse-text args max_length: was nothing, now 4',
        '--name',
        '--fresh',
      ),
    );
  });

  test('what may change while it runs is taken from now on', async (t) => {
    const { open } = await project(t);
    await open();
    const { spec } = await open({
      overrides: { 'max-steps': '20', 'learning-rate': '0.0005', 'checkpoints.interval': '3' },
    });
    assert.deepEqual([spec.maxSteps, spec.learningRate, spec.checkpoints.interval], [20, 0.0005, 3]);
  });

  test('the same settings in another order are the same settings', async (t) => {
    const { open, projectFolder } = await project(
      t,
      configText.replace('[[env]]', '[[env]]\nargs = { min_length = 3, max_length = 5 }'),
    );
    await open();
    const reordered = configText.replace('[[env]]', '[[env]]\nargs = { max_length = 5, min_length = 3 }');
    await writeFile(path.join(projectFolder, 'words.toml'), reordered);
    await open();
  });

  test('under another name it is another run', async (t) => {
    const { open, outputs } = await project(t);
    await open();
    const { handle } = await open({ run: 'words-2', overrides: { seed: '4' } });
    assert.equal(handle.name, 'words-2');
    assert.deepEqual((await readdir(outputs)).sort(), ['words', 'words-2']);
  });
});

describe('one workflow drives a run', () => {
  test('a second one is refused while the first is running, and told what to do', async (t) => {
    const { open, running } = await project(t);
    running.add('words');
    await open();
    await assert.rejects(
      open({}, 'words-other'),
      hasCode('ConfigInvalid', 'workflow words', 'ratchet-rl status', '--name'),
    );
    await open(); // the first one itself, after a restart
  });

  test('the claim of one that ended is taken over, and then the first one is the second', async (t) => {
    const { open, running } = await project(t);
    await open();
    running.add('words-other');
    await open({}, 'words-other');
    await assert.rejects(open(), hasCode('ConfigInvalid', 'workflow words-other'));
  });

  test('of several that start at once one wins', async (t) => {
    const { open, running } = await project(t);
    const ids = Array.from({ length: 8 }, (_, i) => `driver-${i}`);
    for (const id of ids) running.add(id);
    const results = await Promise.allSettled(ids.map((id) => open({}, id)));
    assert.equal(results.filter(({ status }) => status === 'fulfilled').length, 1);
    for (const result of results) if (result.status === 'rejected') hasCode('ConfigInvalid', 'driver-')(result.reason);
  });
});

describe('a config that cannot be run is refused before anything is written', () => {
  const cases: Readonly<Record<string, Record<string, string>>> = {
    'a key that does not exist': { 'sampling.temprature': '1' },
    'an environment that does not exist': { 'env.0.id': 'revers-text' },
    'a store of another kind': { 'store.uri': 'gs://bucket' },
  };
  for (const [name, overrides] of Object.entries(cases)) {
    test(name, async (t) => {
      const { open, outputs } = await project(t);
      await assert.rejects(open({ overrides }), hasCode('ConfigInvalid'));
      await assert.rejects(readdir(outputs), { code: 'ENOENT' });
    });
  }

  test('arguments that an environment cannot work with are refused, and the name stays free for the corrected config', async (t) => {
    const { open } = await project(t);
    await assert.rejects(
      open({ overrides: { 'env.0.args': '{ min_length = 99 }' } }),
      hasCode('ConfigInvalid', 'min_length'),
    );
    await open();
  });

  test('an environment without examples is refused by name', async (t) => {
    const { open } = await project(t);
    const environment = await openEnvironment({ id: 'reverse-text', args: {} });
    const whole = { ...environment };
    t.after(() => Object.assign(environment, whole));
    Object.assign(environment, { dataset: { length: 0, at: whole.dataset.at.bind(whole.dataset) } });
    await assert.rejects(open(), hasCode('ConfigInvalid', 'reverse-text', 'no examples'));
  });
});

/** A project whose run has committed some steps. */
async function atStep(t: TestContext, step: number) {
  const opened = await project(t);
  const { handle } = await opened.open();
  const test = await runIn(opened.outputs, {}, 'words');
  const roles = openRoles();
  let last = await commitFirst(test, roles);
  while (last.state.step < step) last = await advance(test, roles, last);
  return { ...opened, handle, test, roles };
}

function where({ handle, head }: OpenedRun): [string, number] {
  return [handle.lineage, head!.commit.step];
}

describe('a run that an upgrade takes over', () => {
  test('keeps the settings it has, also when its config was changed or is gone', async (t) => {
    const { open, projectFolder, handle } = await atStep(t, 1);
    const takesOver: TakenOver = { handle, asked: null, request: 'words/first' };
    const before = await open({}, 'words', 'first');
    await writeFile(path.join(projectFolder, 'words.toml'), configText.replace('seed = 3', 'seed = 4'));
    await assert.rejects(open({}, 'words', 'second'), hasCode('ConfigInvalid', 'seed: was 3, now 4'));
    assert.deepEqual((await open({ takesOver }, 'words', 'second')).spec, before.spec);
    await rm(path.join(projectFolder, 'words.toml'));
    const opened = await open({ takesOver }, 'words', 'third');
    assert.deepEqual([opened.spec, opened.handle.spec, ...where(opened)], [before.spec, handle.spec, 'main', 1]);
  });

  test('has defaults for settings that are younger than its spec', async (t) => {
    const { open, handle, test: run } = await atStep(t, 1);
    const { heartbeatTimeoutS: _, breaker: __, ...older } = run.spec;
    const spec = await putJson(run.store, layout.spec('0'.repeat(64)), older);
    const takesOver: TakenOver = { handle: { ...handle, spec }, asked: null, request: 'words/first' };
    const opened = await open({ takesOver }, 'words', 'second');
    assert.deepEqual([opened.spec.heartbeatTimeoutS, opened.spec.breaker.maxFailedShare], [5, 0.5]);
  });

  test('is rewound where that was asked of it, once; a step that cannot be reached any more is a warning', async (t) => {
    const { open, handle } = await atStep(t, 3);
    const asked = (step: number): TakenOver => ({
      handle,
      asked: { ...nothingAsked, rewind: { step, request: `words/asked-${step}` } },
      request: 'words/first',
    });
    assert.deepEqual(where(await open({ takesOver: asked(2) }, 'words', 'second')), ['l2', 2]);
    const again = await open({ takesOver: asked(2) }, 'words', 'third');
    assert.deepEqual([...where(again), again.isRewound], ['l2', 2, true]);
    const refused = await open({ takesOver: asked(9) }, 'words', 'fourth');
    assert.deepEqual([...where(refused), refused.isRewound], ['l2', 2, undefined]);
    assert.match(refused.warnings.join(), /expected a committed step up to 3, got 9/);
  });
});

describe('running from another step', () => {
  for (const key of ['resume.step', 'ckpt.resume-step', 'trainer.ckpt.resume_step']) {
    test(`${key} is understood: an earlier step begins a lineage, -1 and the head itself do not`, async (t) => {
      const { open } = await atStep(t, 3);
      assert.deepEqual(where(await open({ overrides: { [key]: '-1' } })), ['main', 3]);
      assert.deepEqual(where(await open({ overrides: { [key]: '3' } })), ['main', 3]);
      assert.deepEqual(where(await open({ overrides: { [key]: '2' } })), ['l2', 2]);
    });
  }

  test('curves continue where the attempt before left them, without the steps that a rewind superseded', async (t) => {
    const { open, outputs } = await atStep(t, 3);
    const { store } = await runIn(outputs, {}, 'words');
    const rewards = new Map((await readMetrics(store)).map((row) => [row.step, row['train/reward']]));
    for (const step of [1, 2, 3]) {
      const row = { step, lineage: 'main', 'eval/words/policy_version': step, 'eval/words/reward/mean': step / 5 };
      await appendMetrics(store, row);
    }
    const figures = ({ curves }: OpenedRun) => [
      curves!.trend.map(([step, reward]) => [step, reward]),
      curves!.evals.map(({ step, reward }) => [step, reward]),
    ];
    const trend = [1, 2, 3].map((step) => [step, rewards.get(step)]);
    const evals = [1, 2, 3].map((step) => [step, step / 5]);
    assert.deepEqual(figures(await open()), [trend, evals]);
    const rewound = await open({ overrides: { 'resume.step': '2' } }, 'words', 'second');
    assert.equal(rewound.handle.lineage, 'l2');
    assert.deepEqual(figures(rewound), [trend.slice(0, 2), evals.slice(0, 2)]);
  });

  test('in the file it is done once: the interrupted run, trained again, keeps what came since', async (t) => {
    const { open, projectFolder, test: first, roles } = await atStep(t, 3);
    await writeFile(path.join(projectFolder, 'words.toml'), `${configText}[ckpt]\nresume_step = 2\n`);
    const { handle, head } = await open();
    const there = { ...first, run: { ...first.run, lineage: handle.lineage } };
    await advance(there, roles, { state: head!.commit.state, parent: head!.sha256 });
    assert.deepEqual(where(await open({}, 'words', 'second')), ['l2', 3]);
  });

  test('a rewind is begun once per execution, however often its opening is tried', async (t) => {
    const { open } = await atStep(t, 3);
    assert.deepEqual(where(await open({ rewind: 2 })), ['l2', 2]);
    assert.deepEqual(where(await open({ rewind: 2 })), ['l2', 2]);
    assert.deepEqual(where(await open({ rewind: 2 }, 'words', 'second')), ['l3', 2]);
    assert.deepEqual(where(await open()), ['l3', 2]);
  });

  test('a rewind that was done is not done again by whoever takes the run over before it is opened', async (t) => {
    const { open } = await atStep(t, 3);
    await open({ rewind: 2 });
    assert.deepEqual(where(await open({ rewind: 1 }, 'words', 'second')), ['l3', 1]);
    const takesOver: TakenOver = { handle: null, asked: null, request: 'words/first' };
    assert.deepEqual(where(await open({ rewind: 2, takesOver }, 'words', 'third')), ['l3', 1]);
  });

  test('a run that is started anew in place of an open one is rewound as was asked of that, or as is asked now', async (t) => {
    const { open } = await atStep(t, 3);
    const rewind = { step: 2, request: 'words/asked' };
    const overrides = { learningRate: 0.5 };
    const after = (request: string): TakenOver => ({
      handle: null,
      asked: { ...nothingAsked, overrides, rewind },
      request,
    });
    const first = await open({ takesOver: after('words/first/again') }, 'words', 'second');
    assert.deepEqual([...where(first), first.isRewound], ['l2', 2, true]);
    assert.deepEqual(where(await open({ takesOver: after('words/second/again') }, 'words', 'third')), ['l2', 2]);
    const typed = { rewind: 1, takesOver: after('words/third/again') };
    const now = await open(typed, 'words', 'fourth');
    assert.deepEqual([...where(now), now.isRewound], ['l3', 1, true]);
    assert.deepEqual(where(await open(typed, 'words', 'fourth')), ['l3', 1]);
    const takesOver = { handle: null, asked: { ...nothingAsked, overrides }, request: 'words/fourth/again' };
    assert.equal((await open({ takesOver }, 'words', 'fifth')).isRewound, undefined);
  });

  test('a step that is not committed is refused with those that can be chosen', async (t) => {
    const { open } = await atStep(t, 2);
    await assert.rejects(open({ overrides: { 'resume.step': '9' } }), hasCode('Unsupported', 'up to 2, got 9', '0-2'));
    await assert.rejects(open({ overrides: { 'resume.step': '1.5' } }), hasCode('ConfigInvalid', 'resume.step'));
    await assert.rejects(
      open({ overrides: { 'resume.step': '1', 'ckpt.resume_step': '2' } }),
      hasCode('ConfigInvalid', 'ckpt.resume_step', '[resume] step'),
    );
  });
});

describe('a run file that was sent with the workflow', () => {
  test('is what counts: here it may be another one, or none', async (t) => {
    const { open, projectFolder } = await project(t);
    const { sent } = await loadRunConfig('words.toml', { projectFolder });
    assert.deepEqual(sent, { texts: { 'words.toml': configText }, beside: {} });
    await writeFile(path.join(projectFolder, 'words.toml'), 'model = "another"');
    assert.equal((await open({ sent })).spec.maxSteps, 12);
    await rm(path.join(projectFolder, 'words.toml'));
    assert.equal((await open({ sent }, 'words', 'second')).spec.maxSteps, 12);
  });

  test('is refused beside code that is not what was there, by the name of the file', async (t) => {
    const text = configText.replace('id = "reverse-text"', 'id = "./words.ts"');
    const { open, projectFolder } = await project(t, text);
    const code = path.join(projectFolder, 'words.ts');
    await writeFile(code, 'export {};');
    const { sent } = await loadRunConfig('words.toml', { projectFolder });
    assert.deepEqual(Object.keys(sent.beside), ['words.ts']);
    await writeFile(code, 'export default null;');
    await assert.rejects(open({ sent }), hasCode('ConfigInvalid', code, sent.beside['words.ts']!.slice(0, 12)));
  });
});
