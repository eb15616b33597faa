import assert from 'node:assert/strict';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { auditStore } from '../../activities/audit-run.ts';
import { forkRun } from '../../runs/lineages/fork-run.ts';
import { specAskedSince } from '../../runs/forms/stored-spec.ts';
import { reachableSteps, refuseOverRound } from '../../runs/lineages/lineages.ts';
import { listCheckpoints } from '../../runs/versions/list-checkpoints.ts';
import { readCommit, readHead, readJson, storeOf } from '../../runs/run-access.ts';
import { refuseOtherRun } from '../../runs/run-identity.ts';
import { findStoredRun, storedStandings } from '../../cli/stored/stored-runs.ts';
import { layout } from '../../runs/layout.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { encodeJson } from '../../store/objects.ts';
import { hasCode } from '../store/store.contract.ts';
import {
  act,
  advance,
  type Committed,
  commitFirst,
  damage,
  makeRun,
  openRoles,
  placeOf,
  planNext,
  specOf,
  type Roles,
  type TestRun,
} from '../activities/runs.ts';
import { partsOfPlan } from '../../runs/rollouts/batches.ts';

/** A run of `count` committed steps, with a checkpoint at every second one. */
async function started(t: TestContext, count: number, overrides: Readonly<Record<string, string>> = {}) {
  const test = await makeRun(t, overrides);
  const roles = openRoles();
  const versions = [await commitFirst(test, roles)];
  for (let i = 0; i < count; i++) versions.push(await advance(test, roles, versions.at(-1)!));
  await test.store.putIfAbsent(layout.run(), encodeJson({ schemaVersion: 1, name: test.run.name, spec: test.spec }));
  return { test, roles, versions };
}

/** The run taken back, and where it stands then. */
async function rewound({ test, roles }: { test: TestRun; roles: Roles }, step: number, request = 'wf/1') {
  const begun = await roles.beginLineage({ run: test.run, step, request });
  const there: TestRun = { ...test, run: { ...test.run, lineage: begun.lineage } };
  const from: Committed = { state: begun.head.commit.state, parent: begun.head.sha256 };
  return { begun, there, from };
}

/** Contents of the first lineage, without the metrics, which all lineages append to. */
const contentsOf = async ({ store }: TestRun) => {
  const others = ['origins/', 'lineages/l', layout.metrics()];
  const keys = (await store.list('')).filter((key) => !others.some((prefix) => key.startsWith(prefix)));
  return Promise.all(keys.map(async (key) => [key, Buffer.from((await store.read(key))!).toString('base64')]));
};

describe('a rewind', () => {
  test('begins a lineage with the state of that step and overwrites nothing of the old one', async (t) => {
    const run = await started(t, 5);
    const before = await contentsOf(run.test);
    const { begun, there, from } = await rewound(run, 4);
    const { commit } = begun.head;
    assert.equal(begun.lineage, 'l2');
    assert.deepEqual(commit.state, { ...run.versions[4]!.state, lineage: 'l2' });
    assert.deepEqual(commit.origin, { run: 'words', lineage: 'main', step: 4, sha256: run.versions[4]!.parent });
    assert.deepEqual(commit.outcomes, { step: 4, issued: '1-8', ended: { inherited: '1-8' }, pending: '' });
    await advance(there, run.roles, from);
    assert.deepEqual(await contentsOf(run.test), before);
  });

  test('asked again by the same workflow it is the same lineage; of two at once each has its own, the later is current', async (t) => {
    const run = await started(t, 4);
    const ask = (request: string) => run.roles.beginLineage({ run: run.test.run, step: 2, request });
    const once = await ask('wf/1');
    assert.deepEqual(await ask('wf/1'), once);
    const both = await Promise.all([ask('wf/2'), ask('wf/3')]);
    assert.deepEqual(both.map(({ lineage }) => lineage).sort(), ['l3', 'l4']);
    assert.deepEqual(
      both.map(({ head }) => head.commit.origin!.lineage),
      ['main', 'main'],
    );
    assert.equal((await auditStore(run.test.run)).current, 'l4');
  });

  test('interrupted between its record and its first commit, it is completed by whoever asks next', async (t) => {
    const run = await started(t, 4);
    const { begun } = await rewound(run, 2);
    await run.test.store.removeAll(layout.commit('l2', 2));
    assert.deepEqual((await rewound(run, 2)).begun, begun);
  });

  test('a lost trainer finds the checkpoint across lineages and trains the batches of both again', async (t) => {
    const run = await started(t, 5, { 'checkpoints.interval': '4' });
    const { there, from } = await rewound(run, 5);
    const next = await advance(there, run.roles, from);
    const { policyTrainer, trainers } = openRoles();
    const recovery = await policyTrainer.bringTo(there.run, next.state.policy);
    assert.deepEqual(placeOf(recovery), { restoredFrom: 4, replayedSteps: 2, damaged: [] });
    assert.deepEqual(trainers[0]!.trained, ['step 5', 'step 6']);
  });

  test('a rewind of a rewind names the lineage that made the commit, and the trainer follows all of them', async (t) => {
    const run = await started(t, 3);
    const second = await rewound(run, 2);
    const three = await advance(second.there, run.roles, second.from);
    const third = await rewound(run, 2, 'wf/2');
    assert.deepEqual([third.begun.lineage, third.begun.head.commit.origin!.lineage], ['l3', 'main']);
    const fourth = await rewound(run, 2, 'wf/3');
    const last = await advance(fourth.there, run.roles, fourth.from);
    assert.notEqual(last.state.policy.digest, three.state.policy.digest);
    const recovery = await openRoles().policyTrainer.bringTo(fourth.there.run, last.state.policy);
    assert.deepEqual([recovery!.restoredFrom, recovery!.replayedSteps], [2, 1]);
    assert((await auditStore(run.test.run)).isSound);
  });

  test('weights that retention removed are made again from stored batches, to the same bytes', async (t) => {
    const run = await started(t, 9, {
      'checkpoints.interval': '3',
      'checkpoints.keep_last': '3',
      max_off_policy_steps: '0',
    });
    const { policy } = run.versions[4]!.state;
    assert.equal(await run.test.store.read(policy.file.key), null, 'retention was expected to have removed v4');
    const { begun, there } = await rewound(run, 4);
    assert.equal(begun.hasWeights, false);
    await assert.rejects(
      act(openRoles(undefined, { salt: 'another engine' }).restoreVersion, { run: there.run, policy }),
      hasCode('CheckpointDamaged', policy.file.key, 'ratchet-rl checkpoints'),
    );
    assert.equal(await run.test.store.read(policy.file.key), null, 'other weights are not put in their place');
    const recovery = await act(openRoles().restoreVersion, { run: there.run, policy });
    assert.deepEqual([recovery!.restoredFrom, recovery!.replayedSteps], [3, 1]);
    await run.test.store.get(policy.file);
  });

  test('a step beyond the head, or one that retention has removed, is refused with what can be chosen', async (t) => {
    const run = await started(t, 8, { max_off_policy_steps: '0' });
    const ask = (step: number) => rewound(run, step, `wf/${step}`);
    await assert.rejects(ask(9), hasCode('Unsupported', 'up to 8, got 9', 'What can be chosen: 0,6-8'));
    await assert.rejects(ask(3), hasCode('Unsupported', 'step 3', 'keep_last', 'What can be chosen: 0,6-8'));
    assert.deepEqual(await run.test.store.list(layout.origins()), []);
    for (const { step } of await reachableSteps(run.test.run)) {
      const { policy } = run.versions[step]!.state;
      await openRoles().policyTrainer.bringTo(run.test.run, policy);
    }
    const empty = await makeRun(t);
    await assert.rejects(
      run.roles.beginLineage({ run: empty.run, step: 0, request: 'wf/1' }),
      hasCode('Unsupported', 'nothing is committed'),
    );
  });

  test('a step whose checkpoint is damaged is refused before anything is written, with the file and the steps that are left', async (t) => {
    const run = await started(t, 8, { max_off_policy_steps: '0' });
    const key = `${layout.weights('main', 6)}config.json`;
    await writeFile(path.join(run.test.folder, key), '{ }');
    for (const step of [6, 7]) {
      await assert.rejects(
        rewound(run, step, `wf/${step}`),
        hasCode('Unsupported', `step ${step} cannot be restored`, key, 'What can be chosen: 0,8.'),
      );
    }
    assert.deepEqual(await run.test.store.list(layout.origins()), []);
    assert.deepEqual((await listCheckpoints(run.test.run)).reachable, [0, 8]);
    assert.equal((await rewound(run, 8)).begun.head.commit.step, 8);
  });

  test('of a checkpoint whose optimizer, or a batch after it, is damaged the same', async (t) => {
    const run = await started(t, 8, { max_off_policy_steps: '0', 'checkpoints.keep_last': '3' });
    assert.deepEqual((await listCheckpoints(run.test.run)).reachable, [0, 4, 5, 6, 7, 8]);
    const { commit } = (await readCommit(run.test.run, 5))!;
    const [part] = await partsOfPlan(run.test.run, await readJson<StepPlan>(run.test.run, commit.plan!));
    await damage(run.test, part!.key);
    assert.deepEqual((await listCheckpoints(run.test.run)).reachable, [0, 4, 6, 7, 8]);
    await damage(run.test, `${layout.checkpoint('main', 6)}optimizer.safetensors`);
    assert.deepEqual((await listCheckpoints(run.test.run)).reachable, [0, 4, 8]);
    await assert.rejects(
      rewound(run, 7),
      hasCode('Unsupported', 'optimizer.safetensors', 'What can be chosen: 0,4,8.'),
    );
  });

  test('a version that is there damaged is made again from the checkpoint before it', async (t) => {
    const run = await started(t, 5);
    const { policy } = run.versions[4]!.state;
    await damage(run.test, policy.file.key);
    const { begun, there } = await rewound(run, 4);
    assert.equal(begun.hasWeights, false);
    const recovery = await act(openRoles().restoreVersion, { run: there.run, policy });
    assert.deepEqual([recovery!.restoredFrom, recovery!.replayedSteps], [2, 2]);
    await run.test.store.get(policy.file);
  });

  test('beyond the head it continues from the newest lineage that was left there', async (t) => {
    const run = await started(t, 5);
    const second = await rewound(run, 2);
    await advance(second.there, run.roles, second.from);
    await assert.rejects(
      rewound(run, 6, 'wf/2'),
      hasCode('Unsupported', 'up to 5, got 6', 'What can be chosen: 0,2-5.'),
    );
    const { begun } = await rewound(run, 5, 'wf/3');
    assert.deepEqual([begun.lineage, begun.head.commit.origin!.lineage], ['l3', 'main']);
    assert.equal(begun.head.commit.policy.digest, run.versions[5]!.state.policy.digest);
    assert((await auditStore(run.test.run)).isSound);
  });

  test('until a lineage has keep_last checkpoints of its own, its batches lead on from where it began', async (t) => {
    const run = await started(t, 4, { 'checkpoints.keep_last': '2' });
    const { there, from } = await rewound(run, 4);
    const fifth = await advance(there, run.roles, from);
    const sixth = await advance(there, run.roles, fifth);
    assert.deepEqual(
      (await reachableSteps(there.run)).map(({ step }) => step),
      [0, 2, 3, 4, 5, 6],
    );
    await damage(there, sixth.state.policy.file.key);
    const recovery = await openRoles().policyTrainer.bringTo(there.run, sixth.state.policy);
    assert.deepEqual([recovery!.restoredFrom, recovery!.replayedSteps, recovery!.damaged.length], [4, 2, 1]);
  });

  test('retention of the old lineage keeps what a later one continues from', async (t) => {
    const run = await started(t, 4, { 'checkpoints.keep_last': '1', max_off_policy_steps: '0' });
    const { there, from } = await rewound(run, 4);
    // A worker of the old lineage without news of the new one continues sealing.
    let old = run.versions.at(-1)!;
    const records = (await run.test.store.read(layout.origin(2)))!;
    await run.test.store.removeAll(layout.origins());
    old = await advance(run.test, run.roles, old);
    await run.test.store.put(layout.origin(2), records);
    for (const step of [6, 8]) {
      void step;
      await act(run.roles.saveCheckpoint, { run: run.test.run, step: old.state.step, pinned: [] });
    }
    const recovery = await openRoles().policyTrainer.bringTo(there.run, from.state.policy);
    assert.deepEqual(placeOf(recovery), { restoredFrom: 4, replayedSteps: 0, damaged: [] });
  });
});

describe('a run whose Temporal state is behind its store', () => {
  test('stops before it trains, and names the rewind', async (t) => {
    const { test, roles, versions } = await started(t, 3);
    await assert.rejects(
      planNext(test, roles, versions[1]!),
      hasCode(
        'CommitConflict',
        'temporal workflow reset',
        'head is step 3 of main',
        'ratchet-rl rewind words --step 1',
      ),
    );
  });

  test('stops generating for a round that is over, and continues one that is not', async (t) => {
    const { test: here, versions } = await started(t, 3);
    const { run } = here;
    await assert.rejects(
      refuseOverRound(run, { step: 2, first: 3 }),
      hasCode('CommitConflict', 'older database', 'about to make step 2', 'ratchet-rl train FILE again'),
    );
    await refuseOverRound(run, { step: 4, first: 9 });
    const key = layout.commit('main', 3);
    const { state } = versions[3]!;
    const open = [{ step: 2, first: 3, last: 4, leases: 'x'.repeat(64) }];
    const commit = JSON.parse((await here.store.read(key))!.toString()) as object;
    await here.store.put(key, encodeJson({ ...commit, state: { ...state, open } }));
    await refuseOverRound(run, { step: 2, first: 3 });
  });

  test('stops when another lineage has begun since', async (t) => {
    const run = await started(t, 3);
    await rewound(run, 2);
    await assert.rejects(
      planNext(run.test, run.roles, run.versions[3]!),
      hasCode('CommitConflict', 'lineage l2 has begun', 'ratchet-rl rewind words --step 3'),
    );
  });
});

describe('the audit of a run', () => {
  test('every lineage adds up, and what a rewind left behind is told', async (t) => {
    const run = await started(t, 4);
    const { there, from } = await rewound(run, 2);
    await advance(there, run.roles, from);
    const report = await auditStore(run.test.run);
    assert.deepEqual(
      report.lineages.map(({ lineage, issued, counts, superseded }) => [lineage, issued, counts, superseded]),
      [
        ['main', 8, { trained: 8 }, 4],
        ['l2', 6, { inherited: 4, trained: 2 }, 0],
      ],
    );
    assert.deepEqual([report.issued, report.counts, report.superseded, report.isSound], [10, { trained: 6 }, 4, true]);
    assert.equal((await act(run.roles.auditRun, { run: there.run })).isSound, true);
  });

  const faults: Readonly<
    Record<string, readonly [(test: TestRun) => Promise<void>, 'brokenLinks' | 'missingSteps', number]>
  > = {
    'a commit in the middle that is gone': [
      ({ store }) => store.removeAll(layout.commit('main', 2)),
      'missingSteps',
      2,
    ],
    'the first commit that is gone': [({ store }) => store.removeAll(layout.commit('main', 0)), 'missingSteps', 0],
    'the newest commit that is gone though its checkpoint is there': [
      ({ store }) => store.removeAll(layout.commit('main', 4)),
      'missingSteps',
      4,
    ],
    'a commit that was changed': [(test) => rewrite(test, 2), 'brokenLinks', 3],
    'the newest commit that was changed': [(test) => rewrite(test, 4), 'brokenLinks', 4],
  };
  for (const [name, [spoil, where, step]] of Object.entries(faults)) {
    test(`${name} is found`, async (t) => {
      const { test } = await started(t, 4);
      await spoil(test);
      const report = await auditStore(test.run);
      assert.equal(report.isSound, false);
      assert.ok(report.lineages[0]![where].includes(step), JSON.stringify(report.lineages[0]));
    });
  }

  const spoilt: Readonly<Record<string, readonly [text: (commit: string) => string, expected: RegExp, code?: string]>> =
    {
      'that is half there': [(commit) => commit.slice(0, 100), /step_2\.json: expected JSON/],
      'that is no object': [() => 'null', /step_2\.json: expected a JSON object/],
      'that is of another format': [
        () => '{"schemaVersion":4}',
        /step_2\.json: expected a commit of version 3 or older, found version 4/,
        'WrittenByNewer',
      ],
      'whose groups are no ranges': [
        (commit) => commit.replace(/"issued":"[^"]*"/, '"issued":"1-99999999999"'),
        /step_2\.json: expected outcomes/,
      ],
    };
  for (const [name, [spoil, message, code = 'CheckpointDamaged']] of Object.entries(spoilt)) {
    test(`a commit ${name} is refused by its name, also by an audit`, async (t) => {
      const { test } = await started(t, 3);
      const key = layout.commit('main', 2);
      const commit = Buffer.from((await test.store.read(key))!).toString('utf8');
      await test.store.put(key, Buffer.from(spoil(commit)));
      await assert.rejects(auditStore(test.run), { name: code, message });
    });
  }

  test('a record of a lineage that names no origin is refused by its name', async (t) => {
    const { test } = await started(t, 3);
    await test.store.put(layout.origin(2), Buffer.from('{"schemaVersion":1,"lineage":"l2"}'));
    await assert.rejects(auditStore(test.run), {
      name: 'CheckpointDamaged',
      message: /lineage_2\.json: expected an origin/,
    });
  });

  test('a lineage whose origin was changed after it began is found', async (t) => {
    const run = await started(t, 3);
    await rewound(run, 3);
    await rewrite(run.test, 3);
    const report = await auditStore(run.test.run);
    assert.deepEqual(report.lineages[1]!.brokenLinks, [3]);
  });

  async function rewrite({ folder }: TestRun, step: number): Promise<void> {
    const file = path.join(folder, layout.commit('main', step));
    await writeFile(file, (await readFile(file, 'utf8')).replace('"codeVersion":"test"', '"codeVersion":"tost"'));
  }
});

describe('the list of checkpoints', () => {
  test('each is compared with its sha256; the latest is the newest that verifies', async (t) => {
    const { test } = await started(t, 5);
    const list = await listCheckpoints(test.run);
    assert.deepEqual(
      list.checkpoints.map(({ step, state, usableFor }) => [step, state, usableFor.join()]),
      [
        [0, 'sealed', 'rewind,fork'],
        [2, 'sealed', 'rewind,fork'],
        [4, 'sealed', 'latest,rewind,fork'],
      ],
    );
    assert.deepEqual(
      [list.head, list.reachable],
      [5, [0, 1, 2, 3, 4, 5].filter((step) => list.reachable.includes(step))],
    );
    await damage(test, `${layout.checkpoint('main', 4)}optimizer.safetensors`);
    const damaged = await listCheckpoints(test.run);
    assert.deepEqual(
      damaged.checkpoints.map(({ state, usableFor }) => [state, usableFor.join()]),
      [
        ['sealed', 'rewind,fork'],
        ['sealed', 'latest,rewind,fork'],
        ['damaged', ''],
      ],
    );
    assert.match(damaged.checkpoints[2]!.problem!, /optimizer\.safetensors.*damaged/);
  });

  test('v0 is always among them, however many came after it', async (t) => {
    const { test } = await started(t, 8, { 'checkpoints.keep_last': '1' });
    assert.deepEqual(
      (await listCheckpoints(test.run)).checkpoints.map(({ step }) => step),
      [0, 8],
    );
  });

  test('what an unfinished upload left is no checkpoint', async (t) => {
    const { test, versions } = await started(t, 5);
    await test.store.removeAll(`${layout.checkpoint('main', 4)}manifest.json`);
    const list = await listCheckpoints(test.run);
    assert.deepEqual(
      list.checkpoints.map(({ state }) => state),
      ['sealed', 'sealed', 'unsealed'],
    );
    const recovery = await openRoles().policyTrainer.bringTo(test.run, versions[5]!.state.policy);
    assert.deepEqual([recovery!.restoredFrom, recovery!.damaged], [2, []]);
  });
});

test('what a finished run was started with again is told from what its steps were made with', async (t) => {
  const { test } = await started(t, 2);
  const { commit } = (await readHead(test.run))!;
  const source = { config: '/home/me/words.toml', overrides: {} };
  await test.store.put(layout.source(commit.spec.key), encodeJson({ ...source, attempt: 1 }));
  assert.equal(await specAskedSince(test.run, commit), null);

  const key = layout.spec('f'.repeat(64));
  await test.store.put(key, encodeJson({ ...test.spec, maxSteps: 70 }));
  await test.store.put(layout.source(key), encodeJson({ ...source, attempt: 2 }));
  assert.equal((await specAskedSince(test.run, commit))?.spec.maxSteps, 70);

  await test.store.put(layout.source(commit.spec.key), encodeJson({ ...source, attempt: 3 }));
  assert.equal(await specAskedSince(test.run, commit), null, 'it was started as it was before');
});

describe('a fork', () => {
  const fork = (from: TestRun, step: number, change: Partial<RunSpec> = {}, name = 'twig') =>
    forkRun({
      from: from.run,
      step,
      spec: { ...from.spec, name, ...change },
      source: { config: 'words.toml', overrides: {} },
    });

  /** A fork has settings of its own: those of the run that it came from are not in its folder. */
  const forkOf = ({ run: { store, lineage } }: TestRun, name = 'twig') => ({ store, lineage, name });

  async function goOn({ test, roles }: { test: TestRun; roles: Roles }, name = 'twig', steps = 2) {
    const place = forkOf(test, name);
    const store = storeOf(place);
    const run = { ...test.run, name, spec: (await readHead(place))!.commit.spec };
    const there: TestRun = { ...test, run, store, folder: path.join(path.dirname(test.folder), name) };
    const head = (await readHead(run))!;
    let last: Committed = { state: head.commit.state, parent: head.sha256 };
    for (let i = 0; i < steps; i++) last = await advance(there, roles, last);
    return { there, last };
  }

  test('stands alone: the run it came from may be removed, and unchanged it makes the very same steps', async (t) => {
    const run = await started(t, 6);
    await fork(run.test, 4);
    await rm(run.test.folder, { recursive: true });
    const { there, last } = await goOn({ test: run.test, roles: openRoles() });
    assert.equal(last.state.policy.digest, run.versions[6]!.state.policy.digest);
    const report = await auditStore(there.run);
    assert.deepEqual([report.isSound, report.counts], [true, { inherited: 8, trained: 4 }]);
    assert.deepEqual(report.lineages[0]!.from!.run, 'words');
  });

  test('from a later lineage it brings weights and optimizer to its own first lineage', async (t) => {
    const run = await started(t, 3);
    const { there, from } = await rewound(run, 2);
    let last = await advance(there, run.roles, from);
    last = await advance(there, run.roles, last);
    const { commit } = await fork(there, 4);
    assert.deepEqual([commit.policy.weights, commit.policy.digest], ['weights/step_4/', last.state.policy.digest]);
    await goOn(run);
  });

  test('the running means of roles come with it', async (t) => {
    const run = await started(t, 1);
    const baselines = { duel: { first: 0.25, second: -0.5 } };
    const last = run.versions[1]!;
    const two = await advance(run.test, run.roles, { ...last, state: { ...last.state, baselines } });
    assert.deepEqual(two.state.baselines, baselines);
    assert.deepEqual((await fork(run.test, 2)).commit.state.baselines, baselines);
    assert.deepEqual((await rewound(run, 2)).from.state.baselines, baselines);
  });

  test('asked twice it is one run; a name that another run has is refused', async (t) => {
    const run = await started(t, 4);
    assert.deepEqual(await fork(run.test, 4), await fork(run.test, 4));
    await assert.rejects(fork(run.test, 2), hasCode('ConfigInvalid', 'twig', '--name'));
    await assert.rejects(fork(run.test, 4, { learningRate: 1 }), hasCode('ConfigInvalid', 'twig', '--name'));
    await assert.rejects(fork(run.test, 4, {}, 'words'), hasCode('ConfigInvalid', 'words', '--name'));
  });

  test('from a checkpoint that is damaged it is refused with the file, and nothing is left of it', async (t) => {
    const run = await started(t, 4);
    const key = `${layout.weights('main', 4)}config.json`;
    await writeFile(path.join(run.test.folder, key), '{ }');
    await assert.rejects(fork(run.test, 4), hasCode('CheckpointDamaged', key));
    await damage(run.test, `${layout.checkpoint('main', 2)}optimizer.safetensors`);
    await assert.rejects(fork(run.test, 2), hasCode('CheckpointDamaged', 'optimizer.safetensors'));
    assert.deepEqual(await readdir(path.dirname(run.test.folder)), ['words']);
  });

  test('cut off anywhere, it is no run that is trained; the same command finishes it, and another begins it anew', async (t) => {
    const run = await started(t, 4);
    const twig = storeOf(forkOf(run.test));
    const spec = { ...run.test.spec, name: 'twig' };
    const whole = await fork(run.test, 4);
    const keys = await twig.list('');
    for (const cutOff of [
      keys.filter((key) => key.startsWith('lineages/')),
      keys.filter((key) => key !== 'run.json'),
    ]) {
      for (const key of cutOff) await twig.removeAll(key);
      await assert.rejects(
        refuseOtherRun(spec),
        hasCode('ConfigInvalid', 'ratchet-rl fork words --step 4 --name twig', 'not finished'),
      );
      const { store } = run.test.run;
      const [standing] = (await storedStandings(store)).filter((found) => found.run === 'twig');
      assert.deepEqual([standing?.state, standing?.step], ['unfinished fork', null]);
      await assert.rejects(findStoredRun('twig', store), hasCode('ConfigInvalid', 'not finished'));
      assert.deepEqual(await fork(run.test, 4), whole);
      assert.deepEqual(await twig.list(''), keys);
    }
    await twig.removeAll('lineages');
    const { commit } = await fork(run.test, 2, { learningRate: 0.5 });
    assert.equal(commit.origin!.step, 2);
    assert.deepEqual(
      (await twig.list('')).filter((key) => key.includes('step_4')),
      [],
      'what the other one left is no part of it',
    );
    await refuseOtherRun({ ...spec, learningRate: 0.5 });
    await goOn({ test: run.test, roles: openRoles() });
  });

  test('a step without a checkpoint is refused with those that have one', async (t) => {
    const run = await started(t, 5);
    await assert.rejects(fork(run.test, 3), hasCode('Unsupported', 'step 3 has no checkpoint', '0,2,4'));
  });

  test('what a checkpoint cannot be continued from is refused by name; the rest may change', async (t) => {
    const run = await started(t, 4);
    const environments = [{ ...run.test.spec.environments[0]!, args: { min_length: 3 } }];
    const lora = { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj'] };
    await assert.rejects(
      fork(run.test, 4, { model: 'preset:other', lora, environments }),
      hasCode('ConfigInvalid', 'model: was', 'lora: was', 'environment reverse-text'),
    );
    const { commit } = await fork(run.test, 4, { learningRate: 0.5, seed: 99, batchSize: 16 });
    assert.equal(commit.origin!.step, 4);
    assert.equal(specOf().learningRate !== 0.5, true);
  });

  test('where it began stays, however many checkpoints come after it', async (t) => {
    const run = await started(t, 4, { 'checkpoints.keep_last': '1' });
    await fork(run.test, 4);
    const { there } = await goOn(run, 'twig', 4);
    assert.deepEqual(
      (await listCheckpoints(there.run)).checkpoints.map(({ step }) => step),
      [4, 8],
    );
  });
});
