/** Environments of one batch with advantages of their own, against prime-rl's algorithms by source; test/data/algorithms/record_sources.py. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { packSamples } from './pack-samples.ts';
import type { ScoredGroup } from '../../../core/rl/rollout/rollout.ts';
import { accept } from '../../config/read-run.ts';

const { cases } = JSON.parse(readFileSync(new URL('../../data/algorithms/sources.json', import.meta.url), 'utf8')) as {
  readonly cases: readonly {
    readonly algorithm: string;
    readonly rewards: readonly number[];
    readonly advantages: readonly number[];
  }[];
};

const groupOf = (environment: string, ordinal: number, rewards: readonly number[]): ScoredGroup => ({
  ordinal,
  environment,
  exampleId: ordinal,
  epoch: 0,
  policyStep: 0,
  rollouts: rewards.map((reward, index) => ({
    group: ordinal,
    index,
    exampleId: ordinal,
    turns: [
      {
        promptTokenIds: [1, 2],
        tokenIds: [7, 0],
        logprobs: [-0.1, -0.2],
        text: '',
        finishReason: 'stop' as const,
        policyStep: 0,
      },
    ],
    outcome: 'ok' as const,
    reward,
    metrics: {},
  })),
});

const file = `max_steps = 2
[orchestrator]
group_size = 4
batch_size = 16
[[orchestrator.train.source]]
name = "grpo"
env = { taskset = { id = "owner/first" } }
[[orchestrator.train.source]]
name = "max_rl"
env = { taskset = { id = "owner/second" } }
algo = { type = "max_rl" }
`;

test('rows of two sources with grpo and max_rl have the advantages of each source’s own algorithm', () => {
  const { spec } = accept(file);
  assert.deepEqual(
    [spec.advantage, spec.environments.map(({ advantage }) => advantage)],
    ['centered', [undefined, 'max_rl']],
  );
  const groups = cases.map(({ algorithm, rewards }, i) => groupOf(algorithm, i, rewards));
  // The group of equal rewards stays, which prime-rl would take out of its batch.
  const options = { ...spec, advantage: 'centered' as const, rolloutFilters: { pre: [], post: [] } };
  const { samples } = packSamples(groups, options);
  const ours = samples.map(({ advantages }) => advantages.at(-1)!);
  const theirs = cases.flatMap(({ advantages }) => advantages);
  assert.equal(ours.length, theirs.length);
  for (const [row, expected] of theirs.entries()) {
    assert.ok(Math.abs(ours[row]! - expected) < 1e-6, `row ${row}: ${ours[row]}, prime-rl has ${expected}`);
  }
});
