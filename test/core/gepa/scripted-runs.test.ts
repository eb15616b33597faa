/** Whole runs of gepa 0.1.4 (test/data/gepa): a candidate's text is a level, and all its scores are a tenth of it, at most 1. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { z } from 'zod';
import { average } from '../../../core/gepa/fronts.ts';
import { next, result, settle, startSearch } from '../../../core/gepa/search.ts';
import type { SearchAnswer, SearchEvent, SearchSettings } from '../../../core/gepa/search-state.ts';
import { classicSettings } from '../../../core/gepa/settings.ts';

const file = new URL('../../data/gepa/gepa-cases.json', import.meta.url);
const Run = z.object({
  proposed_levels: z.array(z.number()),
  val_size: z.int(),
  minibatch: z.int(),
  max_metric_calls: z.int(),
  options: z.object({
    perfect_score: z.number(),
    skip_perfect_score: z.boolean().default(true),
    acceptance_criterion: z.enum(['strict_improvement', 'improvement_or_equal']).default('strict_improvement'),
  }),
  total_metric_calls: z.int(),
  candidates: z.array(z.string()),
  parents: z.array(z.array(z.int().nullable())),
  averages: z.array(z.number()),
  discovery_eval_counts: z.array(z.int()),
  best_idx: z.int(),
  adapter_calls: z.array(z.tuple([z.string(), z.int()])),
  budget_events: z.array(z.tuple([z.int(), z.int(), z.int()])),
  events_first_30: z.array(z.string()),
});
const { scripted_runs } = z
  .object({ scripted_runs: z.object({ runs: z.array(Run) }) })
  .parse(JSON.parse(readFileSync(file, 'utf8')));

for (const [i, run] of scripted_runs.runs.entries()) {
  const { options } = run;
  const settings = classicSettings({
    seed: 0,
    maxCalls: run.max_metric_calls,
    trainSize: 10,
    valSize: run.val_size,
    minibatchSize: run.minibatch,
    candidateSelection: { kind: 'current_best' },
    perfectScore: options.skip_perfect_score ? options.perfect_score : null,
    acceptance: options.acceptance_criterion,
    overshoots: true,
  });

  test(`scripted run ${i} goes as gepa's, with the calls that gepa makes beyond its budget`, () => {
    const { state, events, asked } = play(settings, run.proposed_levels);
    const found = result(state);
    assert.equal(found.calls, run.total_metric_calls);
    assert.deepEqual(asked, run.adapter_calls);
    assert.deepEqual(
      found.candidates.map(({ texts }) => texts['level']),
      run.candidates,
    );
    assert.deepEqual(
      found.candidates.map(({ parents }) => (parents.length === 0 ? [null] : parents)),
      run.parents,
    );
    assert.deepEqual(
      found.candidates.map(({ callsBefore }) => callsBefore),
      run.discovery_eval_counts,
    );
    for (const [c, { scores }] of found.candidates.entries())
      assert(Math.abs(average(scores) - run.averages[c]!) < 1e-12);
    assert.equal(found.best, run.best_idx);
    const budget = events.flatMap((event) =>
      event.kind === 'budget_updated' ? [[event.used, event.delta, event.remaining]] : [],
    );
    assert.deepEqual(budget, run.budget_events);
    // gepa writes its state between iterations; in ours the caller carries it.
    const theirs = run.events_first_30.filter((kind) => kind !== 'state_saved');
    const ours = events.map(({ kind }) => kind).filter((kind) => kind !== 'budget_updated');
    assert.deepEqual(ours.slice(0, theirs.length), theirs);
  });

  test(`scripted run ${i} keeps to its budget unless told otherwise`, () => {
    const { state } = play({ ...settings, overshoots: false }, run.proposed_levels);
    const { calls, candidates } = result(state);
    assert(calls <= run.max_metric_calls);
    assert.deepEqual(
      candidates.map(({ texts }) => texts['level']),
      run.candidates.slice(0, candidates.length),
    );
  });
}

function play(settings: SearchSettings, levels: readonly number[]) {
  let state = startSearch(settings, { level: '0' });
  const events: SearchEvent[] = [...state.events];
  const asked: [string, number][] = [];
  let reflections = 0;
  for (let open = next(state); open.length > 0; open = next(state)) {
    const answers = open.map((request): SearchAnswer => {
      if (request.kind === 'reflect')
        return { kind: 'text', id: request.id, text: String(levels[reflections++ % levels.length]) };
      const level = request.texts['level']!;
      asked.push([level, request.examples.length]);
      const scores = request.examples.map(() => Math.min(Number(level) / 10, 1));
      return { kind: 'scores', id: request.id, scores, paid: scores.length };
    });
    state = settle(state, answers);
    events.push(...state.events);
  }
  return { state, events, asked };
}
