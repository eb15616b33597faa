/** Behaviour of gepa 0.1.4, case by case (test/data/gepa). */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { z } from 'zod';
import { isAccepted, selectProposals } from '../../../core/gepa/acceptance.ts';
import { selectComponents, textToDigest, turnOfChild } from '../../../core/gepa/components.ts';
import { average, frontsOf, weightsOf, withoutDominated } from '../../../core/gepa/fronts.ts';
import {
  allowedAncestors,
  areRelated,
  commonAncestors,
  drawSubsample,
  findMerge,
  marksOf,
  mergePair,
} from '../../../core/gepa/merge.ts';
import { cutMinibatch, epochOf, fillUp } from '../../../core/gepa/minibatch.ts';
import { extractText, renderReflection } from '../../../core/gepa/reflection-prompt.ts';
import { frontWeights, highest, selectCandidate } from '../../../core/gepa/select-candidate.ts';
import { bestByAverage } from '../../../core/gepa/standing.ts';
import { metCondition } from '../../../core/gepa/stop.ts';
import { randomStream } from '../../../core/random.ts';

const file = new URL('../../data/gepa/gepa-cases.json', import.meta.url);
const scores = z.array(z.number());
const fronts = z.record(z.string(), z.array(z.int()));
const weights = z.record(z.string(), z.number());
const texts = z.record(z.string(), z.string());
const objectives = z.record(z.string(), z.number());
const Cases = z.object({
  dominated_removal: z.array(
    z.object({ fronts, scores, reduced: fronts, dominators: z.array(z.int()), weights, probability: weights }),
  ),
  candidate_selection: z.object({
    cases: z.array(
      z.object({
        val_scores: z.array(scores),
        current_best: z.int(),
        pareto_weights: weights,
        top_1_pareto_weights: weights,
        top_2_pareto_weights: weights,
        top_5_pareto_weights: weights,
      }),
    ),
    idxmax_ties: z.array(z.object({ in: scores, out: z.int() })),
  }),
  acceptance: z.array(
    z.object({
      before: scores.nullable(),
      after: scores.nullable(),
      strict_improvement: z.boolean(),
      improvement_or_equal: z.boolean(),
    }),
  ),
  proposal_selection: z.array(
    z.object({
      proposals: z.array(z.object({ before: scores, after: scores })),
      all_improvements: z.array(z.int()),
      best_improvement: z.array(z.int()),
      top_2: z.array(z.int()),
    }),
  ),
  epoch_sampler: z.object({
    cases: z.array(
      z.object({
        trainset_size: z.int(),
        minibatch: z.int(),
        padded_length: z.int(),
        batches_per_epoch: z.int(),
        calls: z.array(
          z.object({ i: z.int(), ids: scores, epoch: z.int(), shuffle: scores, padded: z.array(z.int()) }),
        ),
      }),
    ),
    several_calls_in_one_iteration: z.object({ n: z.int(), minibatch: z.int(), batches: z.array(scores) }),
    fresh_sampler_started_at_i5_of_3_per_epoch: z.array(z.object({ i: z.int(), epoch: z.int() })),
  }),
  frontier_state: z.object({
    cases: z.array(
      z.object({
        frontier_type: z.enum(['instance', 'objective', 'hybrid', 'cartesian']),
        evaluations: z.array(z.object({ scores: objectives, objectives: z.record(z.string(), objectives).optional() })),
        mapping: z.array(z.tuple([z.union([z.string(), z.array(z.string())]), z.array(z.int())])),
        averages: z.array(z.number().nullable()),
        objective_averages: z.array(objectives),
        best_program: z.int(),
      }),
    ),
  }),
  round_robin_components: z.object({
    components: z.array(z.string()),
    log: z.array(
      z.object({
        pick_for: z.int().optional(),
        got: z.string().optional(),
        add_child_of: z.array(z.int()).optional(),
        pointers: z.array(z.int()),
      }),
    ),
  }),
  merge: z.object({
    trees: z.array(
      z.object({
        candidates: z.array(texts),
        parents: z.array(z.array(z.int().nullable())),
        averages: scores,
        pairs: z.array(
          z.object({
            i: z.int(),
            j: z.int(),
            one_is_ancestor_of_other: z.boolean(),
            common_ancestors: z.array(z.int()),
            allowed_ancestors: z.array(z.int()),
            merged: z
              .union([z.string(), z.object({ candidate: texts, ids: z.array(z.int()), ancestor: z.int() })])
              .optional(),
            again_after_recorded: z.literal('merged').nullable().optional(),
          }),
        ),
      }),
    ),
    subsample: z.array(
      z.object({
        common: z.int(),
        first_better: z.int(),
        second_better: z.int(),
        picked: z.int(),
        picked_first_better: z.int(),
        picked_second_better: z.int(),
        picked_equal: z.int(),
        distinct: z.int(),
      }),
    ),
  }),
  output_extractor: z.array(z.object({ in: z.string(), out: z.string() })),
  prompt_render: z.object({
    template: z.string(),
    current: z.string(),
    dataset: z.array(z.record(z.string(), z.json())),
    out: z.string(),
  }),
  candidate_hash: z.array(z.object({ candidate: texts, sha256: z.string() })),
  stoppers: z.object({
    max_candidate_proposals_3: z.array(z.tuple([z.int(), z.boolean()])),
    'score_threshold_0.8': z.array(z.tuple([z.number(), z.boolean()])),
    max_tracked_3: z.array(z.tuple([z.int(), z.boolean()])),
    no_improvement_2: z.object({ best_scores: scores, stops: z.array(z.boolean()) }),
  }),
});
const cases = Cases.parse(JSON.parse(readFileSync(file, 'utf8')));

const asRecord = (map: ReadonlyMap<string | number, unknown>) => Object.fromEntries(map);
const isNear = (a: number, b: number): boolean => a === b || Math.abs(a - b) < 1e-8;

describe('as gepa does it', () => {
  test('candidates that are missed nowhere are taken from the fronts', () => {
    for (const { fronts, scores, reduced, dominators, weights, probability } of cases.dominated_removal) {
      const left = withoutDominated(new Map(Object.entries(fronts)), scores);
      assert.deepEqual(asRecord(left), reduced);
      assert.deepEqual([...weightsOf(left).keys()], dominators);
      assert.deepEqual(asRecord(weightsOf(left)), weights);
      const sum = [...weightsOf(left).values()].reduce((a, b) => a + b, 0);
      for (const [candidate, weight] of weightsOf(left))
        assert(Math.abs(weight / sum - probability[candidate]!) < 1e-5);
    }
  });

  test('a candidate is drawn by the fronts it is on', () => {
    for (const one of cases.candidate_selection.cases) {
      const averages = one.val_scores.map(average);
      const candidates = one.val_scores.map((scores) => ({ scores, objectives: {} }));
      const fronts = frontsOf('instance', candidates, [...one.val_scores[0]!.keys()]);
      assert.equal(
        selectCandidate({ kind: 'current_best' }, fronts, averages, () => 0),
        one.current_best,
      );
      assert.deepEqual(asRecord(frontWeights({ kind: 'pareto' }, fronts, averages)), one.pareto_weights);
      for (const k of [1, 2, 5] as const)
        assert.deepEqual(
          asRecord(frontWeights({ kind: 'top_k_pareto', k }, fronts, averages)),
          one[`top_${k}_pareto_weights`],
        );
      const total = Object.values(one.pareto_weights).reduce((a, b) => a + b, 0);
      const drawn = Array.from({ length: total }, (_, i) =>
        selectCandidate({ kind: 'pareto' }, fronts, averages, () => (i + 0.5) / total),
      );
      const urn = Object.entries(one.pareto_weights).flatMap(([candidate, weight]) =>
        Array.from({ length: weight }, () => Number(candidate)),
      );
      assert.deepEqual(drawn, urn);
    }
    for (const { in: averages, out } of cases.candidate_selection.idxmax_ties) assert.equal(highest(averages), out);
  });

  test('epsilon_greedy draws from all with probability epsilon, else it takes the best', () => {
    const select = (draws: number[]) =>
      selectCandidate({ kind: 'epsilon_greedy', epsilon: 0.1 }, new Map(), [0.2, 0.9, 0.4], () => draws.shift()!);
    assert.deepEqual([select([0.1]), select([0.0999, 0.99]), select([0, 0])], [1, 2, 0]);
  });

  test('a child is accepted by the sum of its scores', () => {
    for (const { before, after, ...expected } of cases.acceptance)
      for (const criterion of ['strict_improvement', 'improvement_or_equal'] as const)
        assert.equal(isAccepted(criterion, { before, after }), expected[criterion], JSON.stringify([before, after]));
  });

  test('of several proposals all that improve, the best, or the best few are kept', () => {
    for (const { proposals, ...expected } of cases.proposal_selection) {
      const select = (selection: Parameters<typeof selectProposals>[0]) =>
        selectProposals(selection, 'strict_improvement', proposals);
      assert.deepEqual(select('all'), expected.all_improvements);
      assert.deepEqual(select('best'), expected.best_improvement);
      assert.deepEqual(select({ top: 2 }), expected.top_2);
    }
  });

  test('minibatches walk through an order of the whole set per epoch', () => {
    for (const { trainset_size, minibatch, calls, padded_length, batches_per_epoch } of cases.epoch_sampler.cases) {
      const sampled = { size: trainset_size, minibatchSize: minibatch };
      for (const { i, ids, epoch, shuffle, padded } of calls) {
        assert.deepEqual(fillUp(shuffle, minibatch), padded);
        assert.equal(padded.length, padded_length);
        assert.equal(epochOf(i, sampled), epoch);
        assert.equal(epochOf(i + batches_per_epoch, sampled), epoch + 1);
        assert.deepEqual(cutMinibatch(i, sampled, shuffle), ids);
      }
    }
    const { batches, n, minibatch } = cases.epoch_sampler.several_calls_in_one_iteration;
    const order = batches.slice(0, 3).flat();
    const cut = batches.map((_, i) => cutMinibatch(i, { size: n, minibatchSize: minibatch }, order));
    assert.deepEqual(cut, batches);
    assert.throws(() => cutMinibatch(0, { size: 0, minibatchSize: 3 }, []), /no training examples/);
  });

  test('unlike gepa, a search that continues in the middle of an epoch is in that epoch', () => {
    const theirs = cases.epoch_sampler.fresh_sampler_started_at_i5_of_3_per_epoch;
    const ours = theirs.map(({ i }) => epochOf(i, { size: 6, minibatchSize: 2 }));
    assert.deepEqual(
      theirs.map(({ epoch }) => epoch),
      [0, 2, 2, 2],
    );
    assert.deepEqual(ours, [1, 2, 2, 2]);
  });

  test('the four fronts hold whoever shares the best value', () => {
    for (const one of cases.frontier_state.cases) {
      const examples = [...new Set(one.evaluations.flatMap(({ scores }) => Object.keys(scores)))].sort();
      const names = Object.keys(one.objective_averages[0]!);
      const candidates = one.evaluations.map(({ scores, objectives }) => ({
        scores: examples.map((example) => scores[example] ?? null),
        objectives: Object.fromEntries(
          names.map((name) => [name, examples.map((example) => objectives?.[example]?.[name] ?? null)]),
        ),
      }));
      const found = frontsOf(one.frontier_type, candidates, [...examples.keys()]);
      const theirs = one.mapping.map(([key, holders]) => [nameOfFront(key, one.frontier_type, examples), holders]);
      assert.deepEqual(asRecord(found), Object.fromEntries(theirs));
      for (const [i, { scores }] of candidates.entries())
        assert(isNear(average(scores), one.averages[i] ?? -Infinity), `${average(scores)} ${one.averages[i]}`);
      assert.equal(
        bestByAverage(
          candidates.map(({ scores }) => scores),
          { screen: null },
        ),
        one.best_program,
      );
    }
    const plain = [{ scores: [1], objectives: {} }];
    assert.throws(() => frontsOf('objective', plain, [0]), { name: 'ConfigInvalid', message: /"objective"/ });
  });

  test('components take turns, and turns pass though nothing comes of them', () => {
    const { components, log } = cases.round_robin_components;
    const texts = Object.fromEntries(components.map((name) => [name, '']));
    const candidates = [{ texts, turn: 0 }];
    for (const { pick_for, got, add_child_of, pointers } of log) {
      if (add_child_of !== undefined)
        candidates.push({ texts, turn: turnOfChild(add_child_of.map((i) => candidates[i]!)) });
      if (pick_for !== undefined) {
        const { components, turn } = selectComponents('round_robin', candidates[pick_for]!);
        assert.deepEqual(components, [got]);
        candidates[pick_for]!.turn = turn;
      }
      assert.deepEqual(
        candidates.map(({ turn }) => turn),
        pointers,
      );
    }
    assert.deepEqual(selectComponents('all', candidates[0]!), { components, turn: candidates[0]!.turn });
  });

  test('a text is found in an answer', () => {
    for (const { in: answer, out } of cases.output_extractor) assert.equal(extractText(answer), out);
  });

  test('records are told as markdown', () => {
    const { template, current, dataset, out } = cases.prompt_render;
    assert.equal(renderReflection(template, current, dataset), out);
  });

  test('a candidate has the same digest', () => {
    for (const { candidate, sha256 } of cases.candidate_hash)
      assert.equal(createHash('sha256').update(textToDigest(candidate)).digest('hex'), sha256);
  });

  test('it stops when a condition holds', () => {
    const { stoppers } = cases;
    const progress = { iteration: 0, bestScore: 0, candidates: 1, sinceImprovement: 0 };
    for (const [iteration, stops] of stoppers.max_candidate_proposals_3)
      assert.equal(metCondition([{ kind: 'max_proposals', n: 3 }], { ...progress, iteration }) !== null, stops);
    for (const [bestScore, stops] of stoppers['score_threshold_0.8'])
      assert.equal(
        metCondition([{ kind: 'score_threshold', threshold: 0.8 }], { ...progress, bestScore }) !== null,
        stops,
      );
    for (const [candidates, stops] of stoppers.max_tracked_3)
      assert.equal(metCondition([{ kind: 'max_candidates', n: 3 }], { ...progress, candidates }) !== null, stops);
    const { best_scores, stops } = stoppers.no_improvement_2;
    let [best, sinceImprovement] = [-Infinity, 0];
    const stopped = best_scores.map((score) => {
      sinceImprovement = score > best ? 0 : sinceImprovement + 1;
      best = Math.max(best, score);
      return metCondition([{ kind: 'no_improvement', iterations: 2 }], { ...progress, sinceImprovement }) !== null;
    });
    assert.deepEqual(stopped, stops);
    const both = [
      { kind: 'max_proposals', n: 1 },
      { kind: 'max_candidates', n: 2 },
    ] as const;
    assert.equal(metCondition([{ kind: 'any', of: both }], progress), 'max_proposals');
    assert.equal(metCondition([{ kind: 'all', of: both }], progress), null);
    assert.equal(metCondition([{ kind: 'all', of: both }], { ...progress, candidates: 2 }), 'all');
  });
});

describe('merging, as gepa does it', () => {
  const random = (...key: (string | number)[]) => randomStream('merge', ...key);

  test('two candidates are merged over an ancestor where they changed different components', () => {
    for (const [tree, { candidates, parents, averages, pairs }] of cases.merge.trees.entries()) {
      const relatives = candidates.map((texts, i) => ({
        texts,
        parents: parents[i]!.flatMap((parent) => parent ?? []),
        scores: [averages[i]!],
      }));
      for (const { i, j, merged, again_after_recorded, ...expected } of pairs) {
        const pair = [i, j] as const;
        const where = `tree ${tree}, pair ${pair.join()}`;
        assert.equal(areRelated(relatives, pair), expected.one_is_ancestor_of_other, where);
        assert.deepEqual(commonAncestors(relatives, pair), expected.common_ancestors, where);
        assert.deepEqual(allowedAncestors(relatives, pair, averages), expected.allowed_ancestors, where);
        const found = mergePair(relatives, pair, [], random(tree, i, j));
        assert.equal(found === null, merged === undefined, where);
        if (found === null) continue;
        if (typeof merged === 'object')
          assert.deepEqual([found.texts, found.parents, found.ancestor], [merged.candidate, pair, merged.ancestor]);
        const [trio] = marksOf(found);
        const again = mergePair(relatives, pair, [trio!], random(tree, i, j, 'again'));
        assert.equal(again === null, again_after_recorded === null, where);
      }
    }
  });

  test('a pair that shares too few validation examples is not merged', () => {
    const { candidates, parents, averages } = cases.merge.trees[0]!;
    const all = candidates.map((texts, i) => ({
      texts,
      parents: parents[i]!.flatMap((parent) => parent ?? []),
      iteration: i - 1,
      scores: [averages[i]!, averages[i]!, i === 1 ? null : 0],
      objectives: {},
      callsBefore: 0,
      turn: 0,
      minibatch: null,
    }));
    const find = (overlapFloor: number) => findMerge(all, [1, 2], { overlapFloor }, [], random('floor'));
    assert.deepEqual(find(2)?.texts, { x: '1', y: '2' });
    assert.equal(find(3), null);
    assert.equal(findMerge(all, [1], { overlapFloor: 1 }, [], random('pool')), null);
  });

  test('it is tried on examples of which each parent is better at some', () => {
    for (const [i, one] of cases.merge.subsample.entries()) {
      const a = Array.from({ length: one.common }, (_, k) => (k < one.first_better ? 1 : 0.5));
      const isSecond = (k: number) => k >= one.first_better && k < one.first_better + one.second_better;
      const b = Array.from({ length: one.common }, (_, k) => (isSecond(k) ? 1 : 0.5));
      const picked = drawSubsample(a, b, one.picked, random('subsample', i));
      const better = (sign: number) => picked.filter((k) => Math.sign(a[k]! - b[k]!) === sign).length;
      assert.equal(new Set(picked).size, one.distinct);
      assert.equal(picked.length, one.picked);
      if (one.distinct < one.picked) continue; // which ones are repeated is drawn
      assert.deepEqual(
        [better(1), better(-1), better(0)],
        [one.picked_first_better, one.picked_second_better, one.picked_equal],
      );
    }
  });
});

function nameOfFront(key: string | string[], type: string, examples: readonly string[]): string {
  const example = (id: string): string => `val/${examples.indexOf(id)}`;
  if (typeof key === 'string') return type === 'objective' ? `objective/${key}` : example(key);
  const [kind, name, objective] = key as [string, string, string?];
  if (kind === 'val_id') return example(name);
  return kind === 'objective' ? `objective/${name}` : `${example(name)}/${objective}`;
}
