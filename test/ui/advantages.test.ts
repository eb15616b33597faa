/** The advantages that the page shows are those that a batch was packed with, also where they depend on the groups before. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import type { RunSpec } from '../../config/run-spec.ts';
import type { AdvantageKind } from '../../core/settings/learning.ts';
import { rowsOfEpisode } from '../../core/rl/rollout/agents.ts';
import { Packer } from '../../core/rl/learning/pack.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import type { GroupAnswer } from '../../ui/answers.ts';
import { tokensOf } from '../../ui/tokens.ts';
import { RolloutSource } from '../../ui/rollout-source.ts';
import { decodeRows, putJson } from '../../store/objects.ts';
import { openBatch } from '../../runs/rollouts/batches.ts';
import { readJson, requireCommit } from '../../runs/run-access.ts';
import { layout } from '../../runs/layout.ts';
import { severalAgents } from './recorded-run.ts';
import { advance, commitFirst, makeRun, openRoles, openTokenizer, type TestRun } from '../activities/runs.ts';

async function trained(
  t: TestContext,
  overrides: Readonly<Record<string, string>>,
  own: { readonly advantage?: AdvantageKind } = {},
  settings: Partial<RunSpec> = {},
): Promise<TestRun> {
  const plain = await makeRun(t, overrides);
  const spec = {
    ...plain.spec,
    ...settings,
    environments: plain.spec.environments.map((entry) => ({ ...entry, ...own })),
  };
  const made = { ...plain, spec, run: { ...plain.run, spec: await putJson(plain.store, 'specs/own.json', spec) } };
  await made.store.put(layout.run(), Buffer.from(JSON.stringify({ schemaVersion: 1, name: 'words', spec: made.spec })));
  const roles = openRoles();
  let at = await commitFirst(made, roles);
  for (let step = 1; step <= 2; step++) at = await advance(made, roles, at);
  return made;
}

/** Advantages of a step's rollouts from their rows, in the order of the batch. */
async function inBatch({ run }: TestRun, step: number): Promise<number[]> {
  const { commit } = await requireCommit(run, step);
  const plan = await readJson<StepPlan>(run, commit.plan!);
  const batch = await openBatch(run, plan);
  const rows = await batch.read([...batch.rows.keys()]);
  return rows.map(({ advantages, lossMask }) => advantages[lossMask.indexOf(1)]!);
}

const shown = ({ rollouts }: GroupAnswer): (number | null)[] => rollouts.map(({ advantage }) => advantage);

test('a reward against the running mean of its role is shown as its batch had it', async (t) => {
  const made = await trained(t, { 'trainer.advantage.type': 'rae', 'trainer.advantage.decay': '0.5' });
  const source = new RolloutSource(made.run);
  const groups = await Promise.all([3, 4].map((group) => source.group({ step: 2, group })));
  const got = groups.flatMap(shown);
  assert.deepEqual(got, await inBatch(made, 2));
  const alone = groups.flatMap(({ rollouts }) => rollouts.map(({ reward }) => reward));
  assert.notDeepEqual(got, alone, 'the means of step 1 count');
  const [turn] = (await source.tokens({ step: 2, group: 4 }, 1)).turns;
  assert.equal(turn!.advantage, groups[1]!.rollouts[1]!.advantage);

  // Without the previous batch's means, no advantage is claimed.
  const key = layout.commit('main', 2);
  const text = Buffer.from((await made.store.read(key))!).toString();
  await made.store.put(key, Buffer.from(text.replace(/("baselines":\{"reverse-text":\{"agent":)/, '$11')));
  const later = await new RolloutSource(made.run).group({ step: 2, group: 3 });
  assert.deepEqual(shown(later), [null, null, null, null]);
  assert.match(later.withoutAdvantages!, /the running means of step 2 are not those/);
});

test('an advantage within the group is shown as its batch had it, also that of an environment of its own', async (t) => {
  const made = await trained(t, {}, { advantage: 'std_normalized' });
  const source = new RolloutSource(made.run);
  const groups = await Promise.all([3, 4].map((group) => source.group({ step: 2, group })));
  assert.deepEqual(groups.flatMap(shown), await inBatch(made, 2));
  assert.equal(groups[0]!.withoutAdvantages, null);
});

test('each agent of an episode has its own advantage and its own tokens, also where all were asked the same', async (t) => {
  const { run, store, spec } = await severalAgents(t);
  const source = new RolloutSource(run);
  const key = (await store.list(layout.rounds('main', 1))).find((one) => layout.isScored(one))!;
  const [group] = decodeRows<ScoredGroup>((await store.read(key))!, key) as [ScoredGroup];
  const { ofAgents } = new Packer(spec as ConstructorParameters<typeof Packer>[0]).credit(group);
  const { turns } = await source.tokens({ step: 1, group: group.ordinal }, 1);
  assert.deepEqual(
    turns.map(({ advantage }) => advantage),
    [...ofAgents.get(1)!, null],
  );
  assert.notEqual(turns[0]!.advantage, turns[1]!.advantage);
  assert.deepEqual(
    turns.map(({ mask }) => mask.every((counts) => counts === 1)),
    [true, true, false],
  );
  // The trainer's figures are those of the agent's own row.
  const rollout = group.rollouts[1]!;
  const { rows } = rowsOfEpisode(rollout, spec);
  const told = tokensOf(rollout, await openTokenizer(), {
    rows,
    unmaskedBecause: null,
    creditOf: () => ({ advantage: null }),
    scoresOf: (tokenIds) => {
      const at = rows.findIndex((row) => row.tokenIds === tokenIds);
      return { row: String(at), logprobs: Float32Array.from(tokenIds, () => at), entropies: null };
    },
  });
  assert.deepEqual(
    told.turns.map(({ trained: of }) => of && [...new Set(of.logprobs)]),
    [[0], [1], null],
  );
  assert.match(turns[1]!.agent!, /^proposer 2, reward -1, advantage -/);
});

test('the advantage of a function of the user’s is read from the batch, and not asked for again', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-own-advantage-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const file = path.join(folder, 'advantage.mjs');
  const code = 'export default (rewards) => rewards.map((reward, i) => (reward ?? 0) * 10 + i);\n';
  await writeFile(file, code);
  const sha256 = createHash('sha256').update(code).digest('hex');
  const made = await trained(t, {}, {}, { advantage: { import: { path: file, sha256 } } });
  await writeFile(file, 'throw new Error("the page runs no code of a run");\n');
  const source = new RolloutSource(made.run);
  const groups = await Promise.all([3, 4].map((group) => source.group({ step: 2, group })));
  const batch = await inBatch(made, 2);
  assert.deepEqual(groups.flatMap(shown), batch);
  assert.ok(
    batch.some((advantage) => advantage >= 3),
    batch.join(),
  );
  assert.equal(groups[0]!.withoutAdvantages, null);

  // A removed batch had them, and the function is not asked instead.
  for (const key of await made.store.list('batches/')) await made.store.removeAll(key);
  const later = await new RolloutSource(made.run).group({ step: 2, group: 3 });
  assert.match(later.withoutAdvantages ?? '', /a function of your own gave them, and /);
});
