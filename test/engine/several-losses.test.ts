/** A batch of several losses: rewards, a teacher, and what environments said. As prime-rl's own code has it (test/data/algorithms/record_losses.py), and by the weights it trains. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { batchOf, factsOf, type TrainSample } from '../../core/rl/learning/batch.ts';
import { filterGroups } from '../../core/rl/filters/filter-groups.ts';
import { packSamples } from '../core/rl/pack-samples.ts';
import type { ChatMessage, HeardSpan, ScoredGroup, Turn } from '../../core/rl/rollout/rollout.ts';
import { LogprobLoss } from '../../engine/index.ts';
import { EngineOptimizer } from '../../engine/train/optimizer.ts';
import { accept } from '../config/read-run.ts';

interface Row {
  readonly environment: string;
  readonly reward: number;
  readonly kept: boolean;
  readonly sampler: readonly number[];
  readonly policy: readonly number[];
  readonly teacher: readonly number[];
  readonly nodes: readonly {
    readonly role: ChatMessage['role'];
    readonly sampled: boolean;
    readonly tokens: readonly number[];
    readonly content: readonly boolean[];
  }[];
  readonly weights: Readonly<Record<'rl' | 'ce' | 'ref_kl', readonly number[] | null>>;
  readonly gradients?: readonly number[];
}
const home = JSON.parse(readFileSync(new URL('../data/algorithms/losses.json', import.meta.url), 'utf8')) as {
  readonly rows: readonly Row[];
  readonly loss: number;
  readonly scales: Readonly<Record<'rl' | 'ce' | 'ref_kl', number>>;
  readonly metrics: Readonly<Record<'nll' | 'ref_kl/is_masked', readonly number[]>>;
};

const { spec } = accept(`
model = "preset:reverse-text-0.2m"
max_steps = 2
batch_size = 4
rollouts_per_example = 2
post_batch_filters = [{ type = "zero_advantage" }]
trainer = { loss = "dppo", echo = { tool = 0 } }
teacher = { model = "teacher", url = "http://localhost:1/v1" }
[[env]]
id = "owner/echo"
echo = { tool = 0.1, user = 0.05 }
[[env]]
id = "owner/plain"
[[env]]
id = "owner/taught"
loss = "opd"
`);

/** Turns of a rollout, each with what was heard before it. */
function turnsOf({ nodes, sampler }: Row): Turn[] {
  const turns: Turn[] = [];
  let heardAt: HeardSpan[] = [];
  let at = 0;
  for (const { role, sampled, tokens, content } of nodes) {
    const before = nodes.flatMap((node) => node.tokens).slice(0, at);
    if (sampled) {
      turns.push({
        promptTokenIds: before,
        tokenIds: tokens,
        logprobs: sampler.slice(at, at + tokens.length),
        text: '',
        finishReason: 'stop',
        policyStep: 0,
        heardAt,
      });
      heardAt = [];
    } else heardAt.push({ role, tokens: [at + content.indexOf(true), at + content.lastIndexOf(true) + 1] });
    at += tokens.length;
  }
  return turns;
}

function groups(rewardOf = ({ reward }: Row): number => reward): ScoredGroup[] {
  return ['echo', 'plain', 'taught'].map((environment, ordinal) => ({
    ordinal,
    environment,
    exampleId: 0,
    epoch: 0,
    policyStep: 0,
    rollouts: home.rows
      .filter((row) => row.environment === environment)
      .map((row, index) => ({
        group: ordinal,
        index,
        exampleId: 0,
        turns: turnsOf(row),
        outcome: 'ok',
        reward: rewardOf(row),
        metrics: {},
      })),
  }));
}

const packed = () => packSamples(groups(), { ...spec, advantage: 'centered' });
const kept = home.rows.filter((row) => row.kept);
const rows = (): TrainSample[] =>
  packed().samples.map((sample, r) => ({
    ...sample,
    behaviorLogprobs: sample.behaviorLogprobs ?? sample.lossMask.map(() => 0),
    ...(sample.objective ? { teacherLogprobs: kept[r]!.teacher } : {}),
  }));
const options = { loss: spec.loss, distillation: spec.distillation!, temperature: 1, klBeta: 0 };

test('rows are learned from rewards, from a teacher and from what was said, with the weights that prime-rl gives them', () => {
  const { samples, stats, setAside } = packed();
  assert.equal(samples.length, kept.length);
  for (const [r, row] of kept.entries()) {
    const { tokenIds, lossMask, objective, observed = [] } = samples[r]!;
    assert.deepEqual(
      tokenIds,
      row.nodes.flatMap(({ tokens }) => tokens),
    );
    const sampled = row.nodes.flatMap(({ tokens, sampled: isIt }) => tokens.map(() => (isIt ? 1 : 0)));
    const rewarded = row.weights.rl ? row.weights.rl.map((weight, t) => (sampled[t] === 1 ? weight : 0)) : sampled;
    assert.deepEqual(objective ? lossMask.map(() => 0) : lossMask, rewarded, `rl of row ${r}`);
    const none = tokenIds.map(() => 0);
    assert.deepEqual(objective === 'ref_kl' ? lossMask : none, row.weights.ref_kl ?? none, `ref_kl of row ${r}`);
    const said = tokenIds.map((_, t) => observed.find(({ from, to }) => from <= t && t < to)?.weight ?? 0);
    assert.deepEqual(said, row.weights.ce ?? none, `ce of row ${r}`);
  }
  assert.equal(stats.observedTokens, home.scales.ce);
  assert.deepEqual([setAside.filteredRollouts, setAside.unplacedMessages], [2, 0]);
});

test('groups of equal rewards teach something where more than advantages is learned, and are counted by rollouts where sizes differ', () => {
  const alike = groups(() => 1);
  const round = { step: 1, first: 0, last: 2, policyStep: 0, leases: { key: 'leases', sha256: '', bytes: 0 } };
  const scored = { key: 'scored', sha256: '', bytes: 0 };
  const { kept, ended } = filterGroups(alike, { round, scored, spec });
  assert.deepEqual([kept.ordinals, kept.sizes, ended], ['0,2', undefined, { 'filtered:no_signal': '1' }]);
  const environments = spec.environments.map((entry, i) => (i === 2 ? { ...entry, rolloutsPerExample: 3 } : entry));
  const counted = filterGroups(alike, { round, scored, spec: { ...spec, environments } });
  assert.deepEqual([counted.kept.sizes, counted.size], [[4, 2], 8]);
});

test('the loss of such a batch and its gradient are those of prime-rl', async () => {
  const batch = rows();
  const loss = new LogprobLoss();
  const pass = await loss.pass(
    batch,
    options,
    kept.map(({ policy }) => policy),
  );
  await loss.close();
  assert.ok(Math.abs(pass.metrics.loss - home.loss) < 1e-6, `${pass.metrics.loss}, prime-rl has ${home.loss}`);
  assert.equal(pass.metrics.tokenCount, home.scales.rl + home.scales.ce + home.scales.ref_kl);
  for (const [r, { gradients }] of kept.entries()) {
    gradients!.forEach((expected, t) => {
      const found = pass.gradients[r]![t]!;
      assert.ok(Math.abs(found - expected) < 1e-6, `row ${r}, token ${t}: ${found}, prime-rl has ${expected}`);
    });
  }
  // prime-rl reports them row by row.
  const counts = batch.flatMap((row) => factsOf(row).observed ?? []);
  const nll = home.metrics.nll.reduce((sum, mean, i) => sum + mean * counts[i]!, 0) / home.scales.ce;
  assert.ok(Math.abs(pass.metrics.nll! - nll) < 1e-6);
  const taught = batch.flatMap((row) => (row.objective ? [factsOf(row).counted] : []));
  const masked = home.metrics['ref_kl/is_masked'].reduce((sum, mean, i) => sum + mean * taught[i]!, 0);
  assert.ok(Math.abs(pass.metrics.refKlMasked! - masked / home.scales.ref_kl) < 1e-6);
});

const training = { learningRate: 1e-2, optimizer: spec.optimizer, ...options };
/** Rows within the preset's vocabulary. */
const small = (): TrainSample[] => rows().map((row) => ({ ...row, tokenIds: row.tokenIds.map((id) => id % 30) }));

async function trained(
  given: readonly TrainSample[],
  {
    lora = null,
    ...more
  }: Partial<Parameters<EngineOptimizer['trainStep']>[1]> & { readonly lora?: object | null } = {},
) {
  const optimizer = await EngineOptimizer.open('preset:reverse-text-0.2m', { threads: 1, seed: 5, lora: lora as null });
  const result = await optimizer.trainStep(given, { ...training, ...more });
  assert.ok(result.applied, JSON.stringify(result));
  const made = { gradient: optimizer.gradient.flat.slice(), digest: await optimizer.digest(), metrics: result.metrics };
  await optimizer.close();
  return made;
}

function unheard(row: TrainSample): TrainSample {
  const { observed: _, ...others } = row;
  return others;
}

function unlearned(row: TrainSample): TrainSample {
  return { ...row, lossMask: row.lossMask.map(() => 0) };
}

const difference = (one: Float32Array, other: Float32Array): number =>
  one.reduce((most, value, i) => Math.max(most, Math.abs(value - other[i]!)), 0);
const size = (one: Float32Array): number => one.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

for (const lora of [null, { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj', 'v_proj'] }]) {
  test(`the gradient is the sum of those of its parts, however they are cut${lora ? ', of adapters too' : ''}`, async () => {
    const batch = small();
    const whole = await trained(batch, { lora });
    const alone = [
      batch.map((row) => (row.objective ? unlearned(unheard(row)) : unheard(row))),
      batch.map((row) => (row.objective ? unheard(row) : unlearned(unheard(row)))),
      batch.map(unlearned),
    ];
    const parts = await Promise.all(alone.map((one) => trained(one, { lora })));
    const sum = whole.gradient.map((_, i) => parts.reduce((total, { gradient }) => total + gradient[i]!, 0));
    assert.ok(size(whole.gradient) > 1e-3);
    assert.ok(difference(whole.gradient, Float32Array.from(sum)) < 1e-5 * size(whole.gradient));
    assert.ok(parts.every(({ gradient }) => size(gradient) > 1e-4));
    const cut = await trained(batch, { lora, microBatchRows: 1 });
    assert.ok(difference(whole.gradient, cut.gradient) < 1e-5 * size(whole.gradient));
    assert.equal((await trained(batch, { lora })).digest, whole.digest);
  });
}

test('parts of such a batch that are steps of their own divide by what is in them', async () => {
  const batch = small().map((row, index) => ({ ...row, rollout: { index, of: kept.length } }));
  const halves = await trained(batch, { miniBatches: 2 });
  const [first, second] = [batch.slice(0, 3), batch.slice(3)];
  const optimizer = await EngineOptimizer.open('preset:reverse-text-0.2m', { threads: 1, seed: 5, lora: null });
  for (const half of [first, second]) assert.ok((await optimizer.trainStep(half, training)).applied);
  assert.equal(await optimizer.digest(), halves.digest);
  await optimizer.close();
});

test('rows of a teacher’s without the loss of distillation are refused', async () => {
  const { distillation: _, ...plain } = options;
  const loss = new LogprobLoss();
  await assert.rejects(
    loss.pass(
      batchOf(rows()),
      plain,
      kept.map(({ policy }) => policy),
    ),
    /loss of distillation/,
  );
  await loss.close();
});
