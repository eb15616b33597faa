import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { callsFree, reflectionsFree } from '../../../core/gepa/budget.ts';
import { tellings } from '../../../core/gepa/figures.ts';
import { askToStop, changeBudget, next, result, settle, startSearch } from '../../../core/gepa/search.ts';
import type { Candidate, SearchSettings, SearchState } from '../../../core/gepa/search-state.ts';
import { classicSettings, defaultSettings, leastBudget, mergeDefaults } from '../../../core/gepa/settings.ts';
import { anyOrder, answerOf, atOnce, drive, scoreOf, type Toy } from './toy-search.ts';

const sizes = { seed: 0, maxCalls: 200, trainSize: 20, valSize: 12 };

const someSettings: fc.Arbitrary<SearchSettings> = fc
  .record({
    isClassic: fc.boolean(),
    seed: fc.nat(1000),
    maxCalls: fc.integer({ min: 12, max: 160 }),
    trainSize: fc.integer({ min: 1, max: 20 }),
    valSize: fc.integer({ min: 1, max: 12 }),
    parallel: fc.integer({ min: 1, max: 4 }),
    parallelMax: fc.integer({ min: 1, max: 5 }),
    maxReflections: fc.integer({ min: 1, max: 40 }),
    proposals: fc.integer({ min: 1, max: 3 }),
    proposalSelection: fc.constantFrom('all' as const, 'best' as const, { top: 2 }),
    screen: fc.constantFrom(null, 1, 4),
    overlapsValidation: fc.boolean(),
    componentSelection: fc.constantFrom('all' as const, 'round_robin' as const),
    candidateSelection: fc.constantFrom(
      { kind: 'pareto' as const },
      { kind: 'epsilon_greedy' as const, epsilon: 0.3 },
      { kind: 'mixed' as const, of: [{ weight: 1, selection: { kind: 'current_best' as const } }] },
    ),
    merge: fc.constantFrom(null, { ...mergeDefaults, overlapFloor: 1 }),
    reusesMinibatch: fc.boolean(),
    skipsTried: fc.boolean(),
    perfectScore: fc.constantFrom(null, 1),
  })
  .map(({ isClassic, ...options }) => (isClassic ? classicSettings(options) : defaultSettings(options)));

const someToy: fc.Arbitrary<Toy> = fc.record({
  settings: someSettings,
  start: fc.constantFrom({ system_prompt: 'a' }, { system_prompt: 'a', 'tool:search': 'b', hint: '' }),
  failing: fc.constantFrom(0, 0.1, 0.5, 1),
  paidInVain: fc.constantFrom(0, 0.5, 1),
});

/** With few reflections left, an answer without a prompt decided by when it came whether an iteration had to wait. */
const textsWithoutPrompt: [Toy, number] = [
  {
    settings: defaultSettings({
      seed: 185,
      maxCalls: 146,
      trainSize: 17,
      valSize: 8,
      parallel: 4,
      parallelMax: 5,
      maxReflections: 14,
      proposals: 2,
      proposalSelection: 'all',
      screen: null,
      reusesMinibatch: false,
      perfectScore: 1,
    }),
    start: { system_prompt: 'a', 'tool:search': 'b', hint: '' },
    failing: 0,
    paidInVain: 0,
  },
  1347625398,
];

const withoutEvents = (state: SearchState): object => ({ ...state, events: [] });

describe('a search', () => {
  test('never makes more metric calls than its budget, whatever fails and however late answers come', () => {
    fc.assert(
      fc.property(someToy, fc.nat(), (toy, order) => {
        const { state, paid } = drive(toy, anyOrder(order));
        assert.equal(result(state).calls, paid);
        assert(paid <= toy.settings.maxCalls, `${paid} calls of ${toy.settings.maxCalls}`);
        assert(result(state).isFinished);
        assert(state.reflections <= toy.settings.maxReflections!, `${state.reflections} reflections`);
      }),
      { numRuns: 150 },
    );
  });

  test('ends when the reflections that it may ask for are used up, though calls are left', () => {
    const bounded = { start: { system_prompt: 'a' }, failing: 0, paidInVain: 0 };
    for (const maxReflections of [1, 5, 1000]) {
      const toy = { ...bounded, settings: defaultSettings({ ...sizes, maxReflections }) };
      const { reflections, stopReason, calls } = result(drive(toy, atOnce).state);
      const isShort = maxReflections < 1000;
      assert.deepEqual([reflections <= maxReflections, stopReason], [true, isShort ? 'max_reflections' : 'budget']);
      if (isShort) assert.ok(reflections === maxReflections && calls < sizes.maxCalls);
    }
  });

  test('could not make more either if everything it has asked for were paid for', () => {
    fc.assert(
      fc.property(someToy, fc.nat(), (toy, order) => {
        let state = startSearch(toy.settings, toy.start);
        for (let turn = 0; next(state).length > 0; turn++) {
          const outstanding = next(state).reduce((n, r) => n + (r.kind === 'evaluate' ? r.examples.length : 0), 0);
          assert(result(state).calls + outstanding <= toy.settings.maxCalls);
          for (const { paid, reserved } of state.iterations) assert(paid <= reserved);
          state = settle(
            state,
            anyOrder(order)(next(state), turn).map((request) => answerOf(toy, request)),
          );
        }
      }),
      { numRuns: 60 },
    );
  });

  test('comes out the same in whatever order answers come', () => {
    fc.assert(
      fc.property(someToy, fc.nat(), (toy, order) => {
        const expected = drive(toy, atOnce);
        const found = drive(toy, anyOrder(order));
        assert.deepEqual(withoutEvents(found.state), withoutEvents(expected.state));
        assert.deepEqual(found.asked.map(({ id }) => id).sort(), expected.asked.map(({ id }) => id).sort());
      }),
      { numRuns: 150, examples: [textsWithoutPrompt] },
    );
  });

  test('counts a text that holds no prompt once, as any other; one of an earlier Ratchet goes on as it began', () => {
    const settings = classicSettings({ ...sizes, proposals: 2, maxReflections: 5 });
    const { countsTextsOnce, ...earlier } = settings;
    assert.ok(countsTextsOnce);
    const freeAfter = (texts: readonly (string | null)[], settings: SearchSettings): number => {
      let state = startSearch(settings, { system_prompt: 'a' });
      for (let open = next(state); open[0]?.kind === 'evaluate'; open = next(state))
        state = settle(
          state,
          open.map((request) => answerOf({ settings, start: {}, failing: 0, paidInVain: 0 }, request)),
        );
      const asked = next(state).slice(0, texts.length);
      state = settle(
        state,
        asked.map(({ id }, i) => ({ kind: 'text', id, text: texts[i]! })),
      );
      return reflectionsFree(state);
    };
    assert.deepEqual([freeAfter([], settings), freeAfter(['b'], settings), freeAfter([null], settings)], [3, 3, 3]);
    assert.deepEqual([freeAfter([], earlier), freeAfter(['b'], earlier), freeAfter([null], earlier)], [3, 3, 2]);
  });

  test('continues from its state as JSON as if nothing had happened', () => {
    fc.assert(
      fc.property(someToy, (toy) => {
        let state = startSearch(toy.settings, toy.start);
        for (let open = next(state); open.length > 0; open = next(state)) {
          const read = JSON.parse(JSON.stringify(state)) as SearchState;
          assert.deepEqual(read, state);
          const before = JSON.stringify(state);
          const answers = open.map((request) => answerOf(toy, request));
          const after = settle(read, answers);
          assert.deepEqual(settle(state, answers), after);
          assert.equal(JSON.stringify(state), before, 'settle leaves the state it is given as it is');
          state = after;
        }
      }),
      { numRuns: 50 },
    );
  });

  test('holds the scores that were answered, at the examples they are of', () => {
    fc.assert(
      fc.property(someToy, fc.nat(), (toy, order) => {
        const { state } = drive(toy, anyOrder(order));
        for (const { texts, scores } of result(state).candidates)
          for (const [example, score] of scores.entries())
            if (score !== null) assert.equal(score, scoreOf(texts, 'val', example));
      }),
      { numRuns: 60 },
    );
  });

  test('reflects on traces that exist, of the examples and scores it says', () => {
    fc.assert(
      fc.property(someToy, fc.nat(), (toy, order) => {
        const { asked } = drive(toy, anyOrder(order));
        const evaluated = new Map(asked.map((request) => [request.id, request]));
        for (const request of asked) {
          if (request.kind !== 'reflect') continue;
          assert.equal(request.records.length, toy.settings.minibatchSize);
          for (const { request: id, index, example, score } of request.records) {
            const source = evaluated.get(id)!;
            assert(source.kind === 'evaluate' && source.set === 'train' && source.keepsTraces);
            assert.equal(source.examples[index], example);
            assert.deepEqual(source.texts, request.texts);
            assert.equal(scoreOf(source.texts, 'train', example), score);
          }
        }
      }),
      { numRuns: 60 },
    );
  });

  test('ends with a best that was scored on every validation example, unless what was asked for failed', () => {
    fc.assert(
      fc.property(someToy, (toy) => {
        const { state } = drive({ ...toy, failing: 0 }, atOnce);
        const { best, candidates, coverage } = result(state);
        assert.equal(coverage, toy.settings.valSize);
        assert(!candidates[best]!.scores.includes(null));
      }),
      { numRuns: 60 },
    );
  });

  test('returns the start unless another one is above it by its own measurements, and the highest of those that are', () => {
    fc.assert(
      fc.property(someToy, fc.boolean(), fc.nat(), (toy, isOfEarlierRatchet, order) => {
        const { final, ...others } = toy.settings;
        const settings: SearchSettings = isOfEarlierRatchet || final === undefined ? others : { ...others, final };
        const { state } = drive({ ...toy, settings }, anyOrder(order));
        const { best, candidates } = result(state);
        if (best === 0) return;
        const [found, start] = [candidates[best]!, candidates[0]!];
        assert.ok(leadOf(start, found) > 0, JSON.stringify([start.scores, found.scores]));
        const isWhole = ({ scores }: Candidate) => !scores.includes(null);
        if (!isWhole(start) || !isWhole(found)) return;
        const [mean, error] = [leadOf(start, found), errorOf(start, found)];
        assert.ok(mean > (settings.final?.lead ?? 0) * error, `${mean} ± ${error}`);
        for (const other of candidates.filter(isWhole))
          assert.ok(
            leadOf(start, other) <= mean + 1e-12 ||
              leadOf(start, other) <= (settings.final?.lead ?? 0) * errorOf(start, other) + 1e-12,
          );
      }),
      { numRuns: 150 },
    );
  });

  test('scores the start on every validation example, and the best of the screen by a heat', () => {
    const settings = defaultSettings({ seed: 1, maxCalls: 500, trainSize: 20, valSize: 50 });
    assert.deepEqual(settings.final, { candidates: 4, examples: 15, lead: 1 });
    const { asked, state } = drive({ settings, start: { system_prompt: '' }, failing: 0, paidInVain: 0 }, atOnce);
    const sizesOf = (purpose: string) =>
      asked.flatMap((request) =>
        request.kind === 'evaluate' && request.purpose === purpose ? [request.examples.length] : [],
      );
    assert.deepEqual(sizesOf('start'), [50]);
    assert.deepEqual(sizesOf('final').slice(0, 5), [15, 15, 15, 15, 30]);
    assert.ok(result(state).best > 0);
  });

  test('of an earlier Ratchet goes on as it began: the start on the screen alone, the rest for the best', () => {
    const { final, ...settings } = defaultSettings({ seed: 1, maxCalls: 500, trainSize: 20, valSize: 50 });
    assert.ok(final);
    const { asked } = drive({ settings, start: { system_prompt: '' }, failing: 0, paidInVain: 0 }, atOnce);
    const evaluated = asked.flatMap((request) => (request.kind === 'evaluate' ? [request] : []));
    assert.deepEqual([evaluated[0]!.purpose, evaluated[0]!.examples.length], ['start', 5]);
    const finals = evaluated.filter(({ purpose }) => purpose === 'final');
    assert.ok(finals.length > 0 && finals.every(({ examples }) => examples.length === 45));
    assert.match(finals[0]!.id, /^final\.\d+\.\d+$/);
  });
});

/** Mean of the differences between two candidates, over the examples that both were scored on. */
function leadOf(start: Candidate, other: Candidate): number {
  const differences = differencesOf(start, other);
  return differences.reduce((sum, difference) => sum + difference, 0) / differences.length;
}

function errorOf(start: Candidate, other: Candidate): number {
  const [differences, mean] = [differencesOf(start, other), leadOf(start, other)];
  const squares = differences.reduce((sum, difference) => sum + (difference - mean) ** 2, 0);
  return Math.sqrt(squares / Math.max(1, differences.length - 1) / differences.length);
}

function differencesOf(start: Candidate, other: Candidate): number[] {
  return start.scores.flatMap((was, i) => (was === null || other.scores[i] == null ? [] : [other.scores[i] - was]));
}

describe('what fails', () => {
  const toy = { settings: defaultSettings(sizes), start: { system_prompt: 'a' }, paidInVain: 0 };

  test('a score that did not come is asked for again, and only it', () => {
    let state = startSearch(classicSettings(sizes), toy.start);
    const [asked] = next(state);
    assert(asked?.kind === 'evaluate' && asked.id === 'start');
    const scores = asked.examples.map((example) => (example === 4 || example === 7 ? null : 0.5));
    state = settle(state, [{ kind: 'scores', id: 'start', scores, paid: 11 }]);
    const [again] = next(state);
    assert(again?.kind === 'evaluate');
    assert.deepEqual([again.id, again.examples], ['start~2', [4, 7]]);
    state = settle(state, [{ kind: 'scores', id: 'start~2', scores: [1, 0], paid: 2 }]);
    const { candidates, calls } = result(state);
    assert.deepEqual(candidates[0]!.scores, [0.5, 0.5, 0.5, 0.5, 1, 0.5, 0.5, 0, 0.5, 0.5, 0.5, 0.5]);
    assert.equal(calls, 13);
  });

  test('a start that cannot be evaluated ends the search, without a score', () => {
    const { state, paid } = drive({ ...toy, failing: 1, paidInVain: 1 }, atOnce);
    const { stopReason, score, texts, coverage } = result(state);
    assert.deepEqual([stopReason, score, coverage], ['start_not_evaluated', null, 0]);
    assert.deepEqual(texts, toy.start);
    assert(paid > 0);
  });

  test('an iteration whose scores do not come is given up, costs what it cost, and adds no candidate', () => {
    let state = startSearch(classicSettings(sizes), toy.start);
    for (let turn = 0; next(state).length > 0; turn++)
      state = settle(
        state,
        next(state).map((request) => {
          if (request.kind === 'evaluate' && request.purpose !== 'start')
            return { kind: 'failed', id: request.id, paid: 1 };
          return answerOf({ ...toy, failing: 0 }, request);
        }),
      );
    const { candidates, calls, stopReason } = result(state);
    assert.equal(candidates.length, 1);
    assert(calls <= 200 && calls > 170, String(calls));
    assert.equal(stopReason, 'budget');
  });

  test('a reflection model whose answers hold no prompt is told of', () => {
    let state = startSearch(defaultSettings(sizes), toy.start);
    const told: string[] = [];
    for (let open = next(state); open.length > 0; open = next(state)) {
      state = settle(
        state,
        open.map((request) =>
          request.kind === 'reflect'
            ? { kind: 'text', id: request.id, text: null }
            : answerOf({ ...toy, failing: 0 }, request),
        ),
      );
      told.push(...tellings(state.events, state).map(({ text }) => text));
    }
    assert(
      told.some((text) => /iteration 0: a reflection gave nothing that could be a prompt/.test(text)),
      told.join('\n'),
    );
    assert(!told.some((text) => text.startsWith('candidate')));
  });

  test('iterations that make no calls end the search after a while', () => {
    const settings = defaultSettings({ ...sizes, maxCalls: 5_000, idleIterationsMax: 7 });
    let state = startSearch(settings, toy.start);
    let reflections = 0;
    for (let open = next(state); open.length > 0; open = next(state))
      state = settle(
        state,
        open.map((request) => {
          if (request.kind === 'evaluate' && request.purpose === 'parent')
            return { kind: 'failed', id: request.id, paid: 0 };
          if (request.kind === 'reflect') reflections += 1;
          return answerOf({ ...toy, failing: 0 }, request);
        }),
      );
    assert.equal(result(state).stopReason, 'idle');
    assert.equal(reflections, 0);
    assert(state.begun <= 7 + 2, `${state.begun} iterations, of which two were under way beside the seventh`);
  });

  test('answers that do not fit what was asked are refused', () => {
    const state = startSearch(classicSettings(sizes), toy.start);
    const twelve = Array.from({ length: 12 }, () => 0);
    const answer = (answer: Parameters<typeof settle>[1][number]) => () => settle(state, [answer]);
    assert.throws(answer({ kind: 'scores', id: '3.child.0', scores: [1], paid: 1 }), /"3\.child\.0" is open/);
    assert.throws(answer({ kind: 'scores', id: 'start', scores: [1], paid: 1 }), /12 examples .* 1 scores/);
    assert.throws(answer({ kind: 'scores', id: 'start', scores: twelve, paid: 13 }), /12 metric calls at most .* 13/);
    assert.throws(answer({ kind: 'scores', id: 'start', scores: [...twelve.slice(1), NaN], paid: 12 }), /NaN/);
    assert.throws(answer({ kind: 'text', id: 'start', text: 'x' }), /asked for scores/);
  });
});

describe('a search that is told something', () => {
  const toy: Toy = { settings: defaultSettings(sizes), start: { system_prompt: 'a' }, failing: 0, paidInVain: 0 };

  function halfWay(): SearchState {
    let state = startSearch(toy.settings, toy.start);
    while (result(state).calls < 100)
      state = settle(
        state,
        next(state).map((request) => answerOf(toy, request)),
      );
    return state;
  }

  function toTheEnd(from: SearchState): SearchState {
    let state = from;
    while (next(state).length > 0)
      state = settle(
        state,
        next(state).map((request) => answerOf(toy, request)),
      );
    return state;
  }

  test('to stop, finishes what is under way and validates the best', () => {
    const asked = halfWay();
    const { stopReason, calls, coverage } = result(toTheEnd(askToStop(asked)));
    assert.deepEqual([stopReason, coverage], ['asked', 12]);
    assert(calls < 200);
  });

  test('another budget, continues to that one, also when it had used the first one up', () => {
    const ended = toTheEnd(halfWay());
    assert.equal(result(ended).stopReason, 'budget');
    const longer = result(toTheEnd(changeBudget(ended, 300)));
    assert(longer.calls > 230 && longer.calls <= 300, String(longer.calls));
    assert.deepEqual(
      longer.candidates.slice(0, 3).map(({ texts }) => texts),
      result(ended)
        .candidates.slice(0, 3)
        .map(({ texts }) => texts),
    );
    const promised = halfWay().settings.maxCalls - callsFree(halfWay());
    const shorter = result(toTheEnd(changeBudget(halfWay(), 1)));
    assert(shorter.calls <= promised && promised < 200 && shorter.coverage === 12, `${shorter.calls} of ${promised}`);
  });
});

describe('settings', () => {
  test('the least sensible budget is told with its arithmetic', () => {
    const { calls, arithmetic } = leastBudget({ valSize: 50, minibatchSize: 3 });
    assert.equal(calls, 209);
    assert.match(arithmetic, /^50 .* \+ 3 × \(3 .* \+ 50 .*\) = 209$/);
  });

  test('a budget that cannot pay for the validation of one prompt is refused', () => {
    assert.throws(() => classicSettings({ ...sizes, maxCalls: 11 }), {
      name: 'ConfigInvalid',
      message: /at least 12.*is 11/,
    });
    assert.throws(() => classicSettings({ ...sizes, trainSize: 0 }), {
      name: 'ConfigInvalid',
      message: /trainSize.*≥ 1.*0/,
    });
  });
});

describe('several components', () => {
  const start = { system_prompt: 'a', 'tool:search': 'b' };

  test('take turns, and what two candidates changed apart is merged', () => {
    const settings = classicSettings({ ...sizes, maxCalls: 600, merge: { ...mergeDefaults, overlapFloor: 1 } });
    const { state, asked, events } = drive({ settings, start, failing: 0, paidInVain: 0 }, atOnce);
    const written = new Set(asked.flatMap((request) => (request.kind === 'reflect' ? [request.component] : [])));
    assert.deepEqual([...written].sort(), ['system_prompt', 'tool:search']);
    const merges = result(state).candidates.filter(({ parents }) => parents.length === 2);
    assert(merges.length > 0);
    assert.equal(events.filter(({ kind }) => kind === 'merge_accepted').length, merges.length);
    assert(merges.length <= mergeDefaults.maxInvocations);
    for (const { texts, parents } of merges) {
      const from = parents.map((parent) => result(state).candidates[parent]!.texts);
      for (const [name, text] of Object.entries(texts)) assert(from.some((parent) => parent[name] === text));
    }
  });

  test('with "all", every component of a candidate is written anew at once', () => {
    const settings = classicSettings({ ...sizes, componentSelection: 'all' });
    const { asked } = drive({ settings, start, failing: 0, paidInVain: 0 }, atOnce);
    const first = asked.filter((request) => request.kind === 'reflect' && request.iteration === 0);
    assert.deepEqual(
      first.map((request) => request.kind === 'reflect' && request.component),
      Object.keys(start),
    );
  });
});

test('candidates can be compared by objectives, where the environment gives some', () => {
  const settings = classicSettings({ ...sizes, frontier: 'hybrid' });
  const toy: Toy = { settings, start: { system_prompt: 'a' }, failing: 0, paidInVain: 0 };
  const play = (withObjectives: boolean): SearchState => {
    let state = startSearch(settings, toy.start);
    while (next(state).length > 0)
      state = settle(
        state,
        next(state).map((request) => {
          const answer = answerOf(toy, request);
          if (answer.kind !== 'scores' || !withObjectives) return answer;
          return { ...answer, objectives: answer.scores.map((score) => ({ right: score!, brief: 1 - score! })) };
        }),
      );
    return state;
  };
  const { candidates } = result(play(true));
  assert.deepEqual(Object.keys(candidates.at(-1)!.objectives), ['right', 'brief']);
  assert.throws(() => play(false), { name: 'ConfigInvalid', message: /frontier "hybrid"/ });
});
