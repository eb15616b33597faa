/** Stored forms: each carries its version, each older version has a reader, and none changes without a new version. */
import assert from 'node:assert/strict';
import { cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, describe, test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { next, startSearch } from '../../core/gepa/search.ts';
import type { StoredPromptSearch } from '../../core/gepa/prompt-search.ts';
import { decodeRanges } from '../../core/rl/ledger.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { LeasedGroups, RunHandle, StepCommit, StepPlan } from '../../core/rl/run-state.ts';
import { RatchetError } from '../../core/errors.ts';
import { decodePart, decodeScores, decodeTaught } from '../../runs/rollouts/batch-parts.ts';
import { openBatch } from '../../runs/rollouts/batches.ts';
import { examineStore } from '../../runs/lineages/examine-store.ts';
import { layout } from '../../runs/layout.ts';
import { leasesIn } from '../../runs/rollouts/leases.ts';
import { commitIn } from '../../runs/forms/record-shapes.ts';
import { RestorableSteps } from '../../runs/lineages/restorable-steps.ts';
import { readHead, readJson, requireCommit, storeOf } from '../../runs/run-access.ts';
import { decodeStored, decodeStoredRows, formOf, formsOfOthers, storedForms } from '../../runs/forms/stored-forms.ts';
import { removePlayed } from '../../runs/lineages/unneeded.ts';
import { withWayBack } from '../../runs/lineages/way-back.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { encodeJson, packRows, unpacked } from '../../store/objects.ts';
import { unpack } from '../data/older-runs/archive.mjs';
import { act, advance, commitFirst, evaluateVersion, makeRun, openRoles, WordsInference } from '../activities/runs.ts';
import { fingerprintsNow, recordedFingerprints, unversionedChanges } from './stored-types.ts';

const recordedRuns = mkdtempSync(path.join(tmpdir(), 'ratchet-older-'));
unpack(recordedRuns);
after(() => rmSync(recordedRuns, { recursive: true, force: true }));
const recorded = readdirSync(recordedRuns);

describe('a stored form', () => {
  test('changes with a new version and a reader of the previous one, which npm run record:forms records', () => {
    const now = fingerprintsNow();
    assert.deepEqual(unversionedChanges(recordedFingerprints(), now), []);
    assert.deepEqual(recordedFingerprints(), now, 'type: npm run record:forms');
  });

  test('that changed without a new version is named, with its fields and what to do', () => {
    const now = fingerprintsNow();
    const { leases } = now;
    const types = Object.fromEntries(
      Object.entries(leases!.types).map(([name, text]) => [name, text.replace('chunks', 'pieces')]),
    );
    const [told, ...others] = unversionedChanges(now, { ...now, leases: { ...leases!, types } });
    assert.deepEqual(others, []);
    assert.match(
      told!,
      /leases is stored in another way than its version 2 was:[^]*LeasedGroups[^]*pieces[^]*record:forms/,
    );
    assert.deepEqual(unversionedChanges(now, { ...now, leases: { version: 3, types } }), []);
    assert.match(unversionedChanges(now, { ...now, leases: { version: 1, types } })[0]!, /Versions only grow/);
  });

  test('of settings with fields of no effect keeps the GPUs and the vLLM that they requested', () => {
    const read = (later: object): unknown =>
      decodeStored(encodeJson({ schemaVersion: 1, name: 'words', later }), layout.spec('a'));
    const later = { 'trainer.gpus': 2, 'inference.vllm': { dtype: 'auto' }, 'trainer.compile': true };
    const requested = { trainerGpus: 2, inferenceGpus: null, vllm: { dtype: 'auto' }, torch: {} };
    assert.deepEqual(read(later), { schemaVersion: 1, name: 'words', requested });
    assert.deepEqual(read({ 'trainer.compile': true }), { schemaVersion: 1, name: 'words' });
  });

  test('carries its version in everything that a run and its evaluations store', async (t) => {
    const test = await makeRun(t, { 'eval.interval': '1', 'eval.num_examples': '2', 'checkpoints.interval': '1' });
    const roles = openRoles();
    const first = await commitFirst(test, roles);
    await advance(test, roles, await advance(test, roles, first));
    await evaluateVersion(roles, test, 1);
    const silent: string[] = [];
    const seen = new Set<string>();
    for (const key of await test.store.list('')) {
      if (!/\.jsonl?(?:\.gz)?$/.test(key) || formsOfOthers.some((one) => one.test(key))) continue;
      const form = formOf(key);
      assert.ok(form, `${key} is of no form in runs/forms/stored-forms.ts`);
      seen.add(form.id);
      const text = Buffer.from(unpacked((await test.store.read(key))!, key)).toString('utf8');
      const rows = key.endsWith('.json') ? [text] : text.trim().split('\n');
      const isSaid = rows.every(
        (row) => (JSON.parse(row) as { schemaVersion?: number }).schemaVersion === form.version,
      );
      if (!isSaid && !form.saysNone) silent.push(key);
    }
    assert.deepEqual(silent, []);
    for (const id of ['commit', 'leases', 'rollout', 'scoredGroup', 'packed', 'plan', 'manifest', 'evaluation'])
      assert.ok(seen.has(id), `the run left ${id}`);
  });

  test('of a newer version is refused by its name and versions, wherever it is read, without advice to start over', async () => {
    for (const [id, { name, version, upgrades }] of Object.entries(storedForms)) {
      assert.equal(version, upgrades.length + 1, id);
      const key = sampleKeys[id as keyof typeof storedForms];
      assert.equal(formOf(`file:///there/outputs/words/${key}`)?.id, id, key);
      const bytes = Buffer.from(`${JSON.stringify({ schemaVersion: version + 1 })}\n`);
      const read = /\.jsonl(?:\.gz)?$/.test(key) ? decodeStoredRows : decodeStored;
      assert.throws(
        () => read(bytes, key),
        (error: Error) => {
          assert(error instanceof RatchetError && error.code === 'WrittenByNewer');
          assert.ok(error.message.includes(`${name} of version ${version}`), error.message);
          assert.match(error.message, new RegExp(`found version ${version + 1}\\. A newer Ratchet wrote it`));
          assert.doesNotMatch(error.message, /--fresh|start over/);
          return true;
        },
      );
    }
  });

  test('of columns with the name of a newer version is refused as newer', () => {
    const bytes = Buffer.concat([Buffer.from('ratchetC'), Buffer.alloc(56)]);
    for (const read of [decodePart, decodeTaught, decodeScores])
      assert.throws(
        () => read(bytes, 'batches/step_1.0.rows'),
        /^WrittenByNewer: batches.*found ratchetC\. A newer Ratchet wrote it/,
      );
  });

  test('whose version is not a number is damaged, not newer', () => {
    for (const said of ['2', 0, -1, 1.5, {}])
      assert.throws(
        () => decodeStored(encodeJson({ schemaVersion: said }), 'claims/claim_1.json'),
        /^CheckpointDamaged: claims\/claim_1\.json: expected a version of the claim of a workflow \(schemaVersion\), found .*It is not what was stored/,
      );
  });
});

/** A key of each form. */
const round = 'rollouts/step_3/groups_5-6/';
const sampleKeys: Readonly<Record<keyof typeof storedForms, string>> = {
  runRecord: 'run.json',
  chunkInPlay: 'in_play/step_3.groups_5-6.chunk_1_of_2.1764000000000-0a1b2c3d.json',
  specSource: 'specs/0123.source.json',
  spec: 'specs/0123.json',
  lineage: 'origins/lineage_2.json',
  trainerClaim: 'claims/trainer/epoch_1.json',
  claim: 'claims/claim_1.json',
  keptRun: 'kept.json',
  change: 'changes/01a2.0123456789abcdef.json',
  commit: 'lineages/l2/steps/step_3.json',
  manifest: 'lineages/l2/checkpoints/step_3/manifest.json',
  optimizerFiles: 'lineages/l2/checkpoints/step_3/optimizer/optimizer.json',
  warmUp: 'checkpoints/warm_up/step_50/state.json',
  leases: `lineages/l2/${round}leases.json`,
  playedPart: `${round}chunk_words_1_of_2_from_5.json`,
  leftChunk: `${round}chunk_1_of_2/attempt_1.json`,
  scoredGroup: `${round}chunk_1_of_2_from_5.scored.jsonl.gz`,
  turn: `${round}chunk_1_of_2/turns_3.jsonl`,
  unfinished: `${round}chunk_1_of_2/attempt_2.unfinished.01234567.jsonl`,
  evaluatedExample: 'evals/words--run/step_3/rollouts/chunk_0/attempt_1/rows_1.jsonl',
  rollout: `${round}chunk_1_of_2/part_1.jsonl`,
  notes: `${round}chunk_1_of_2/notes_1.json`,
  pools: 'pools/0123.json',
  plan: 'batches/step_3.attempt_2.01234567.onto.r1.plan.json',
  taught: 'batches/step_3.01234567.teacher.json',
  packed: 'lineages/l2/batches/step_3.01234567.json',
  batchRow: 'batches/step_3.01234567.jsonl',
  quarantinedServers: 'canaries/step_3.r1.quarantined.json',
  canary: 'canaries/step_3.json',
  servedVersion: 'served.json',
  referenceSums: 'sft/reference.json',
  sentNotice: 'notices/sent/main.step_3.note.json',
  webhook: 'notices/webhook/state.json',
  notice: 'notices/main.step_3.note.json',
  sinks: 'sinks/state.json',
  evaluation: 'evaluation/attempt_1.json',
  evaluationSummary: 'evals/words--run/step_3.greedy/evaluation/summary_1.json',
  rescore: 'evals/words--m/step_3/rescores/0a1b2c3d/rescore.json',
  rescoredChunk: 'rescores/0a1b2c3d/chunks/chunk_3.json',
  rescoredGroup: 'rescores/0a1b2c3d/chunks/chunk_3/scores.0123456789abcdef.jsonl.gz',
  journaledGroup: 'rescores/0a1b2c3d/chunks/chunk_3/scored_2.jsonl',
  rescoreSummary: 'rescores/0a1b2c3d/summary.json',
  checkpointSubject: 'evals/checkpoints.json',
  search: 'gepa/words--run/step_3/search/search.json',
  searchSummary: 'search/summary.json',
  answer: 'search/answers/part_12.jsonl',
  promptTrial: 'gepa/words--run/step_3/trial.json',
  budget: 'evals/words--run/step_3/budget/entry_12.json',
  sandboxProject: 'sandboxes.json',
  sandboxPool: 'providers/0123456789abcdef.json',
  sandboxLease: 'open/ratchet-0123/lease.json',
  sandboxCreating: 'open/ratchet-0123/creating.json',
  sandboxLive: 'open/ratchet-0123/live.json',
  endedSandbox: 'ended/2026-11-30/ratchet-0123.json',
  sandboxPlace: 'places/0123456789abcdef/place_3/turn_000000000012.json',
};

/** Unpacks a recorded run into a new folder. */
async function olderRun(t: TestContext, name: string) {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-older-run-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await cp(path.join(recordedRuns, name), folder, { recursive: true });
  const place = { name: 'words', store: resolveStoreUri('.', folder), lineage: 'main', attempt: 1 };
  const { commit } = (await readHead(place))!;
  const run: RunHandle = { ...place, spec: commit.spec };
  return { run, store: storeOf(run), head: commit };
}

test('rollouts of groups that an evaluation scores together have the forms of rollouts and turns', () => {
  const groups = 'rollouts/chunk_0/attempt_1/groups/';
  assert.deepEqual([formOf(`${groups}part_1.jsonl`)?.id, formOf(`${groups}turns_1.jsonl`)?.id], ['rollout', 'turn']);
});

describe('recorded runs of 24, 25 and 26 November', () => {
  test('are read whole, and have a sample of each older version', async (t) => {
    const versions = new Map<string, Set<number>>();
    for (const name of recorded) {
      const { run, store } = await olderRun(t, name);
      assert.deepEqual((await examineStore(run)).faults, [], name);
      for (const key of await store.list('')) {
        const form = formOf(key);
        if (form === null) continue;
        const bytes = (await store.read(key))!;
        const isRows = !key.endsWith('.json');
        if (isRows) decodeStoredRows(bytes, key);
        else decodeStored(bytes, key);
        const [first = '{}'] = Buffer.from(unpacked(bytes, key)).toString('utf8').split('\n');
        const { schemaVersion = 1 } = JSON.parse(first) as { readonly schemaVersion?: number };
        versions.set(form.id, (versions.get(form.id) ?? new Set()).add(schemaVersion));
      }
    }
    // No recorded run stopped within these rows.
    for (const name of [
      'turn-1',
      'answer-1',
      'turn-2',
      'answer-2',
      'rollout-2',
      'scoredGroup-2',
      'turn-3',
      'answer-3',
      'rollout-3',
      'scoredGroup-3',
    ] as const) {
      const [id, version] = name.split('-') as ['turn' | 'answer' | 'rollout' | 'scoredGroup', string];
      const bytes = await readFile(new URL(`../data/stored-forms/${name}.jsonl`, import.meta.url));
      const { schemaVersion: _, ...written } = JSON.parse(bytes.toString('utf8')) as Record<string, unknown>;
      assert.deepEqual(decodeStoredRows(bytes, sampleKeys[id]), [written]);
      versions.set(id, (versions.get(id) ?? new Set()).add(Number(version)));
    }
    for (const name of [
      'checkpointSubject-1',
      'checkpointSubject-2',
      'search-1',
      'search-2',
      'searchSummary-1',
      'commit-2',
      'evaluation-2',
      'leftChunk-1',
    ] as const) {
      const [id, version] = name.split('-') as [
        'checkpointSubject' | 'search' | 'searchSummary' | 'commit' | 'evaluation' | 'leftChunk',
        string,
      ];
      const bytes = await readFile(new URL(`../data/stored-forms/${name}.json`, import.meta.url));
      const { schemaVersion: _, ...written } = JSON.parse(bytes.toString('utf8')) as Record<string, unknown>;
      const { schemaVersion: __, ...read } = decodeStored<Record<string, unknown>>(bytes, sampleKeys[id]);
      assert.deepEqual(read, written);
      versions.set(id, (versions.get(id) ?? new Set()).add(Number(version)));
    }
    const key = sampleKeys.search;
    const search = await readFile(new URL('../data/stored-forms/search-1.json', import.meta.url));
    const { settings, start } = decodeStored<StoredPromptSearch>(search, key);
    const [first] = next(startSearch(settings, start));
    assert.equal(
      first?.kind === 'evaluate' && first.examples.length,
      5,
      'it scores its start on the screen, as it began',
    );
    // The teacher of a run is another server, so its rows are made below.
    for (const [id, { version }] of Object.entries(storedForms))
      for (let older = 1; older < version; older++)
        assert.ok(id === 'taught' || versions.get(id)?.has(older), `there is no sample of version ${older} of ${id}`);
  });

  for (const name of recorded) {
    test(`${name}: every step can be restored, and the rows of its batches are what they were`, async (t) => {
      const { run, store, head } = await olderRun(t, name);
      const reached = await (await RestorableSteps.of(run)).all();
      assert.deepEqual(
        reached.map(({ step, checkpoint }) => [step, checkpoint]),
        Array.from({ length: head.step + 1 }, (_, step) => [step, step < 3 ? 0 : 3]),
      );
      const batch = await openBatch(run, await readJson<StepPlan>(run, head.plan!));
      const rows = await batch.read([...batch.rows.keys()]);
      assert.equal(rows.length, 48);
      for (const [i, { tokenIds, lossMask, behaviorLogprobs, advantages }] of rows.entries()) {
        const { tokens, counted } = batch.rows[i]!;
        assert.deepEqual([tokenIds.length, lossMask.filter((mask) => mask > 0).length], [tokens, counted]);
        assert.deepEqual([behaviorLogprobs!.length, advantages.length], [tokens, tokens]);
      }
      const isRows = new RegExp(`step_${head.step}\\.[^.]+\\.jsonl$`);
      const stored = (await store.list(layout.allBatches('main'))).find((key) => isRows.test(key));
      if (stored) assert.deepEqual(rows, decodeStoredRows((await store.read(stored))!, stored));
    });
  }

  test('leases of 24 November get the chunks that their rollouts are stored by, and finished ones are not sampled again', async (t) => {
    const { run, store, head } = await olderRun(t, 'nov-24-level-0-sampling');
    const folder = layout.round('main', 6, 11, 12);
    const inference = new WordsInference();
    const roles = openRoles(inference);
    const datasets = [{ name: 'reverse-text', weight: 1, datasetLength: 100 }];
    const { policy, curriculum } = head.state;
    const { round, chunks } = await roles.leaseGroups({ run, step: 6, count: 2, datasets, policy, curriculum });
    assert.deepEqual(
      chunks.map(({ index, count, groups, ordinals }) => [index, count, groups, ordinals]),
      [
        [0, 2, 1, '11'],
        [1, 2, 1, '12'],
      ],
    );
    assert.deepEqual(round.policyStep, 5);
    const isStored = async ({ index, count }: (typeof chunks)[number]): Promise<boolean> =>
      (await store.read(`${folder}chunk_${index + 1}_of_${count}.jsonl`)) !== null;
    const [first, second] = (await isStored(chunks[0]!)) ? chunks : chunks.toReversed();
    assert.deepEqual([await isStored(first!), await isStored(second!)], [true, false]);
    await act(roles.playGroups, { run, round, chunk: first! });
    assert.equal(inference.asked.length, 0, 'what is stored of a chunk is taken');
    await act(roles.playGroups, { run, round, chunk: second! });
    assert.equal(inference.asked.length, 24);
  });

  test('groups that were scored with their round keep their rewards', async (t) => {
    const { run, store, head } = await olderRun(t, 'nov-24-level-0-between');
    const datasets = [{ name: 'reverse-text', weight: 1, datasetLength: 100 }];
    const { policy, curriculum } = head.state;
    const roles = openRoles(new WordsInference());
    const { round, chunks } = await roles.leaseGroups({ run, step: 6, count: 2, datasets, policy, curriculum });
    const [older] = layout.scoredIn(await store.list(layout.rounds('main', 6)));
    const before = decodeStoredRows<ScoredGroup>((await store.read(older!))!, older!);
    const changed = before.map((group) => ({
      ...group,
      rollouts: group.rollouts.map((one) => ({ ...one, reward: 0.125 })),
    }));
    await store.put(older!, await packRows(changed));
    const rewards: unknown[] = [];
    for (const chunk of chunks) {
      const { parts } = await act(roles.playGroups, { run, round, chunk });
      const { key } = parts[0]!.scored;
      for (const { rollouts } of decodeStoredRows<ScoredGroup>((await store.read(key))!, key))
        rewards.push(...rollouts.map(({ reward }) => reward));
    }
    assert.deepEqual(rewards, Array(48).fill(0.125));
  });

  test('retention keeps the scored rounds of older runs, which commits may still name', async (t) => {
    const { run, store } = await olderRun(t, 'nov-24-level-1-sampling');
    const scored = layout.scoredIn(await store.list(layout.allRounds('main')));
    assert.ok(scored.length > 3);
    await removePlayed(store, run.lineage, { before: 100, inPlay: [] });
    assert.deepEqual(layout.scoredIn(await store.list(layout.allRounds('main'))), scored);
  });
});

describe('differences of older versions', () => {
  test('groups of several environments were divided in two for each', () => {
    const leases = Array.from({ length: 7 }, (_, i) => ({
      ordinal: i + 1,
      environment: i % 3 === 0 ? 'b' : 'a',
      exampleId: i,
      policyStep: 0,
    }));
    const { chunks } = leasesIn(encodeJson({ ...leasesOfVersion1, leases }), `${round}leases.json`);
    assert.deepEqual(
      chunks.map(({ environment, index, count, ordinals }) => [environment, index, count, decodeRanges(ordinals)]),
      [
        ['a', 0, 2, [2, 3]],
        ['a', 1, 2, [5, 6]],
        ['b', 0, 2, [1, 4]],
        ['b', 1, 2, [7]],
      ],
    );
  });

  test('one group is one chunk', () => {
    const leases = [{ ordinal: 4, environment: 'a', exampleId: 1, policyStep: 0 }];
    const { chunks } = leasesIn(encodeJson({ ...leasesOfVersion1, leases }), `${round}leases.json`);
    assert.deepEqual(chunks, [{ index: 0, count: 1, groups: 1, ordinals: '4' }]);
  });

  test('leases with chunks but without a version keep their chunks', () => {
    const chunks = [{ index: 0, count: 1, groups: 1, ordinals: '4' }];
    const leases = [{ ordinal: 4, environment: 'a', exampleId: 1, policyStep: 0 }];
    const read = leasesIn(encodeJson({ ...leasesOfVersion1, leases, chunks }), `${round}leases.json`);
    assert.deepEqual(read.chunks, chunks);
  });

  test('kept groups had tokens where they now have sizes', async () => {
    const key = path.join(recordedRuns, 'nov-26-level-0-between/words', layout.commit('main', 5));
    const commit = JSON.parse(await readFile(key, 'utf8')) as StepCommit;
    const kept = { scored: commit.spec, policyStep: 5, ordinals: '3-4', tokens: [7, 8] };
    const { surplus } = commitIn(
      encodeJson({ ...commit, state: { ...commit.state, surplus: [kept] } }),
      layout.commit('main', 5),
    ).state;
    const { tokens, ...rest } = kept;
    assert.deepEqual(surplus, [{ ...rest, sizes: tokens }]);
  });

  test('a commit of the afternoon of 25 November names unfinished chunks, which are converted to their groups', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles();
    const { state } = await commitFirst(test, roles);
    const datasets = [{ name: 'reverse-text', weight: 1, datasetLength: 100 }];
    const leased = await roles.leaseGroups({
      ...test,
      step: 1,
      count: 4,
      groupsPerChunk: 2,
      datasets,
      policy: state.policy,
      curriculum: state.curriculum,
    });
    const { step, first, last, leases } = leased.round;
    const open = [{ step, first, last, leases: leases.sha256, chunks: [1] }];
    const { rounds } = await roles.reopenRounds({ run: test.run, open, curriculum: leased.curriculum });
    assert.deepEqual(
      rounds.map(({ groups, chunks, isIssued }) => [groups, chunks.map(({ index }) => index), isIssued]),
      [['3-4', [1], true]],
    );
  });

  test('a teacher’s rows were JSON, with a number for every token', async (t) => {
    const { run, store } = await olderRun(t, 'nov-24-level-0-between');
    const { commit } = await requireCommit(run, 5);
    const plan = await readJson<StepPlan>(run, commit.plan!);
    const plain = await openBatch(run, plan);
    const rows = await plain.read([...plain.rows.keys()]);
    const taught = rows.map(({ lossMask }, row) => lossMask.map((mask, t) => (mask === 0 ? 0 : -row - t / 8)));
    const text = taught.map((row) => `${JSON.stringify(row)}\n`).join('');
    const logprobs = {
      ...(await store.put('batches/step_5.01234567.teacher.jsonl', Buffer.from(text))),
      count: rows.length,
    };
    const batch = await openBatch(run, { ...plan, taught: { logprobs, teacher: 'a server' } });
    assert.deepEqual(
      (await batch.read([3, 47])).map(({ teacherLogprobs }) => teacherLogprobs),
      [taught[3], taught[47]],
    );
  });
});

const version = {
  step: 0,
  digest: '0',
  weights: 'weights/step_0/',
  file: { key: 'f', sha256: '0', bytes: 0 },
  sums: { key: 's', sha256: '0', bytes: 0 },
};
const leasesOfVersion1 = { policy: version, curriculum: { nextOrdinal: 9 } } satisfies Omit<
  Partial<LeasedGroups>,
  'curriculum'
> &
  Record<'curriculum', unknown>;

test('no failure to read stored data advises to throw a run away', async () => {
  const root = fileURLToPath(new URL('../../', import.meta.url));
  for (const room of [
    'activities',
    'backends',
    'cli',
    'core',
    'engine',
    'host',
    'learn',
    'load',
    'play',
    'runs',
    'store',
    'ui',
    'workers',
    'workflows',
  ]) {
    const names = readdirSync(path.join(root, room), { recursive: true, encoding: 'utf8' });
    for (const name of names.filter((one) => /\.m?ts$/.test(one))) {
      const text = await readFile(path.join(root, room, name), 'utf8');
      for (const { 0: told } of text.matchAll(/(?:'CheckpointDamaged'|damaged\()[^;]*;/g))
        assert.doesNotMatch(told, /--fresh|start over|start another run/i, `${room}/${name}`);
    }
  }
});

describe('a failed read names the step that a run can continue from', () => {
  const damaged = (what: string) =>
    new RatchetError('CheckpointDamaged', `${what}: expected another. It is not what was stored.`);

  test('leases of a step that is not committed: the head', async (t) => {
    const { run } = await olderRun(t, 'nov-24-level-0-sampling');
    const told = await withWayBack(run, damaged('rollouts/step_6/groups_11-12/leases.json'));
    assert.match(
      String(told),
      /Nothing that was trained up to step 5 is lost: npx ratchet-rl rewind words --step 5 continues/,
    );
  });

  test('a batch after the last checkpoint: the step before it', async (t) => {
    const { run, store } = await olderRun(t, 'nov-24-level-0-between');
    const { commit } = await requireCommit(run, 5);
    const { packed } = await readJson<StepPlan>(run, commit.plan!);
    await writeFile(path.join(await store.localFolder(''), packed.key), '{"schemaVersion":9}\n');
    const told = await withWayBack(run, damaged(packed.key));
    assert.match(String(told), /npx ratchet-rl rewind words --step 4 continues/);
  });

  test('groups that the head’s state names: the newest step whose state does not name them', async (t) => {
    const { run, store } = await olderRun(t, 'nov-26-level-0-between');
    const { commit } = await requireCommit(run, 5);
    const scored = { key: 'rollouts/step_5/groups_1-2/chunk_1_of_1.scored.jsonl.gz', sha256: '0', bytes: 1 };
    const surplus = [{ scored, policyStep: 4, ordinals: '9' }];
    const changed = encodeJson({ ...commit, state: { ...commit.state, surplus } });
    await writeFile(path.join(await store.localFolder(''), layout.commit('main', 5)), changed);
    assert.match(String(await withWayBack(run, damaged(scored.key))), /--step 4 continues/);
  });

  test('objects of every step: the error stays as it is, because no step continues without them', async (t) => {
    const { run, store } = await olderRun(t, 'nov-24-level-0-between');
    for (const key of ['run.json', 'specs/0123456789abcdef.json', 'origins/lineage_2.json', 'sft/data.jsonl']) {
      const error = damaged(store.uri + key);
      assert.equal(await withWayBack(run, error), error);
    }
  });

  test('other failures, and runs without any intact step: the error stays as it is', async (t) => {
    const { run, store } = await olderRun(t, 'nov-24-level-0-between');
    const other = new RatchetError('StoreFull', 'no space');
    assert.equal(await withWayBack(run, other), other);
    await store.removeAll(layout.allCheckpoints('main'));
    const error = damaged('rollouts/step_6/groups_11-12/leases.json');
    assert.equal(await withWayBack(run, error), error);
  });
});
