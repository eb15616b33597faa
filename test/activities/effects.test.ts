/** Calls with an effect in training, in evaluations and in searches, where the worker goes away in the middle of one. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import type { PlayedChunk } from '../../activities/index.ts';
import { createAnswerSearch } from '../../activities/prompt-search/answer-search.ts';
import { createOpenPromptSearch } from '../../activities/prompt-search/open-search.ts';
import { createEnvironments, openEnvironment, type Environments } from '../../backends/environments/index.ts';
import { makeEffect } from '../../backends/environments/kit.ts';
import type { AnsweredLease } from '../../core/gepa/leases.ts';
import type { PromptSearchHandle, PromptSearchInput } from '../../core/gepa/prompt-search.ts';
import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import { factsOfGroup } from '../../core/rl/rollout/group-facts.ts';
import { stepMetrics } from '../../core/rl/metrics.ts';
import type { EffectKind } from '../../core/rl/rollout/effects.ts';
import type { RunState } from '../../core/rl/run-state.ts';
import { until } from '../workflows/look.ts';
import {
  dependencies,
  evaluationFolder,
  inputFor,
  openEvaluation,
  playChunk,
  rowsIn,
  serve,
} from './evaluation-runs.ts';
import {
  act,
  commitFirst,
  datasets,
  makeRun,
  openRoles,
  openTokenizer,
  scoredRollouts,
  WordsInference,
} from './runs.ts';

/** Everything outside of a run: which calls were made, by example and place, and one that does not return. */
class Outside {
  readonly made = new Map<string, number>();
  /** Calls that never returned. */
  readonly hung: string[] = [];
  /** Calls from this one on never return. */
  hangsFrom = Infinity;

  async call(name: string): Promise<string> {
    this.made.set(name, (this.made.get(name) ?? 0) + 1);
    if (this.count >= this.hangsFrom) {
      this.hung.push(name);
      await new Promise(() => undefined);
    }
    return 'done';
  }

  get count(): number {
    return [...this.made.values()].reduce((sum, times) => sum + times, 0);
  }
}

/** One turn, then a call of each kind of which the second is of the given kind. */
function calling(outside: Outside, kind: EffectKind): Environments {
  return createEnvironments(async () => {
    const words = await openEnvironment({ id: 'reverse-text', args: {} });
    const rollout: typeof words.rollout = async (example, policy, place) => {
      const played = await words.rollout(example, policy, place);
      for (const [key, one] of [
        ['first', 'once'],
        ['second', kind],
      ] as const) {
        const name = `${key} ${place!.group.split('/')[1]} ${example.id} ${place!.index}`;
        const call = { kind: one, key, name: key, arguments: example.id };
        await makeEffect(place!.notes, call, () => outside.call(name));
      }
      return played;
    };
    return { ...words, rollout };
  });
}

describe('a worker that goes away in the middle of calls with an effect', () => {
  for (const kind of ['once', 'keyed'] as const) {
    test(`in training (${kind})`, async (t) => {
      const run = await makeRun(t);
      const outside = new Outside();
      const environments = calling(outside, kind);
      const { state } = await commitFirst(run, openRoles(new WordsInference()));
      const lease = { run: run.run, step: 1, count: 2, curriculum: initialCurriculum, datasets, policy: state.policy };
      const { round } = await openRoles(new WordsInference()).leaseGroups(lease);
      const input = { run: run.run, round, chunk: { index: 0, count: 1 } };

      outside.hangsFrom = 11; // of 8 rollouts with 2 calls each
      const leaving = new MockActivityEnvironment();
      const first = leaving.run(openRoles(new WordsInference(), { environments }).playGroups, input);
      await until('a call hangs', () => outside.count >= 11);
      leaving.cancel('WORKER_SHUTDOWN');
      await first;
      outside.hangsFrom = Infinity;

      const second: PlayedChunk = await act(openRoles(new WordsInference(), { environments }).playGroups, {
        ...input,
        attempt: 2,
      });
      assert.equal(second.unfinished, undefined);
      const rollouts = await scoredRollouts(run.run, second);
      const inDoubt = rollouts.filter(({ outcome }) => outcome === 'in_doubt');
      const made = [...outside.made.entries()];
      for (const [name, times] of made) {
        if (kind === 'once' || name.startsWith('first')) assert.equal(times, 1, name);
      }
      const unsure = outside.hung.filter((name) => kind === 'once' || name.startsWith('first')).length;
      assert.equal(inDoubt.length, unsure);
      assert.ok(inDoubt.every(({ reward, effects }) => reward === null && effects?.once_in_doubt === 1));
      const groups = rollouts.map((rollout) => ({ ...lease, ordinal: rollout.group, environment: 'reverse-text', exampleId: 0, epoch: 0, policyStep: 0, rollouts: [rollout] })); // prettier-ignore
      const facts = groups.map((group) => factsOfGroup(group));
      const metrics = stepMetrics({ step: 1, finished: facts, trained: [], filter: run.spec.filter, environments: ['reverse-text'] }); // prettier-ignore
      assert.equal(metrics['effects/once_in_doubt'] ?? 0, inDoubt.length);
      assert.equal(metrics['train/agg/all/error/in_doubt'] ?? 0, inDoubt.length);
    });
  }

  test('in an evaluation, whose next attempt makes none of them again', async (t) => {
    const outside = new Outside();
    const given = { ...dependencies, environments: calling(outside, 'once') };
    const server = await serve(t);
    const folder = await evaluationFolder(t);
    const input = inputFor(folder, server, { numExamples: 2 });
    const handle = await openEvaluation(input);
    outside.hangsFrom = 8;
    const leaving = new MockActivityEnvironment();
    const first = playChunk(handle, 0, { given, activity: leaving });
    await until('a call hangs', () => outside.count >= 8);
    leaving.cancel('WORKER_SHUTDOWN');
    await assert.rejects(first);
    outside.hangsFrom = Infinity;
    for (let chunk = 0; chunk < handle.chunks; chunk++) await playChunk(handle, chunk, { given });
    const rows = (await rowsIn(`${folder}/abcd1234`)) as { ratchet: { outcome: string; effects?: object } }[];
    assert.equal(rows.length, 6);
    assert.equal(rows.filter(({ ratchet }) => ratchet.outcome === 'in_doubt').length, outside.hung.length);
    assert.ok([...outside.made.values()].every((times) => times === 1));
  });

  test('in a search for a prompt', async (t) => {
    const outside = new Outside();
    const environments = calling(outside, 'once');
    const { run, spec } = await makeRun(t);
    const file = { key: 'w', sha256: '0', bytes: 0 };
    const policy: RunState['policy'] = { step: 1, digest: 'd', weights: 'w/', file, sums: file };
    const input: PromptSearchInput = {
      environments: [{ id: 'reverse-text', name: 'reverse-text', args: {} }],
      model: { kind: 'version', model: 'words', run, policy, sampling: spec.sampling },
      reflection: { model: 'm', servers: [], fields: {} },
      maxCalls: 60,
      minibatchSize: 3,
      perfectScore: null,
      stateColumns: [],
      numTrain: 12,
      numVal: 10,
      numTest: 0,
      maxConcurrent: 1,
      seed: 0,
      isClassic: true,
      initialPrompt: 'Say something.',
      results: { store: run.store, name: 'search', prefix: '' },
      savesResults: false,
      isSmallBudgetMeant: true,
    };
    const around = { codeVersion: 'test', countRolloutWorkers: () => Promise.resolve(1), environments };
    const handle = (await new MockActivityEnvironment().run(createOpenPromptSearch(around), {
      input,
    })) as PromptSearchHandle;
    const slice = { id: '0.child.0', set: 'train', keepsTraces: false, from: 0, examples: [3, 5], texts: handle.start } as const; // prettier-ignore
    const answer = createAnswerSearch({
      inference: () => new WordsInference(),
      tokenizer: openTokenizer,
      environments,
    });
    const work = { handle, work: { kind: 'slices', slices: [slice] } } as const;
    outside.hangsFrom = 2;
    const leaving = new MockActivityEnvironment();
    const first = leaving.run(answer, work);
    await until('a call hangs', () => outside.count >= 2);
    leaving.cancel('WORKER_SHUTDOWN');
    await assert.rejects(first);
    outside.hangsFrom = Infinity;
    const { played } = (await new MockActivityEnvironment().run(answer, work)) as AnsweredLease;
    const { scores } = played[0]!;
    assert.deepEqual(scores.map((score) => score === null), [true, false]); // prettier-ignore
    assert.deepEqual([outside.count, [...outside.made.values()].every((times) => times === 1)], [4, true]);
  });
});
