/** Rollouts beside one that ends their process. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { scriptedPolicy } from '../../backends/environments/scripted.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { ChildEnded } from '../../backends/environments/verifiers/child.ts';
import {
  groupScores,
  type PlayingBridge,
  verifiersEnvironment,
} from '../../backends/environments/verifiers/environment.ts';
import type { Inputs } from '../../backends/environments/verifiers/inputs.ts';
import type { LoadedEnvironment, WirePlayedRow } from '../../backends/environments/verifiers/protocol.ts';
import { Suspects } from '../../backends/environments/verifiers/suspects.ts';
import { playRollout } from '../../play/play-rollout.ts';
import type { EnvironmentSpec } from '../../config/run-spec.ts';

const loaded: LoadedEnvironment = {
  env: 'toy',
  api: 'v0',
  class: 'SingleTurnEnv',
  requires_group: false,
  provides_advantages: false,
  reward_names: ['right'],
  weights: [1],
  system_prompt: null,
  tools: null,
  max_turns: 1,
  sampling: {},
  scoring: 'stored',
  scoring_why: null,
  is_single_turn: true,
};

const inputs: Inputs = {
  length: 3,
  isMissing: false,
  at: (id) => ({ id, prompt: [{ role: 'user', content: 'x' }], answer: '' }),
  lineAt: (id) => JSON.stringify({ example_id: id }),
  close: () => undefined,
};

test('an example that kills its process costs its own rollouts, and not those that were played beside it', async () => {
  /** Failures to trigger when a child dies, by child. */
  const atWork = new Map([false, true].map((isSuspect) => [isSuspect, new Set<(died: Error) => void>()]));
  const played: WirePlayedRow = {
    row: {},
    outcome: 'ok',
    error: null,
    judged: null,
    scorable: true,
    scoring_why: null,
    live: null,
  };
  const mortal: PlayingBridge = {
    rollout: async ({ input, isSuspect = false }) => {
      const beside = atWork.get(isSuspect)!;
      return new Promise((resolve, reject) => {
        beside.add(reject);
        setTimeout(() => {
          if (!beside.has(reject)) return; // dead already
          if ((JSON.parse(input as string) as { example_id: number }).example_id === 2) {
            for (const die of beside) die(new ChildEnded('it ended by itself', beside.size));
            beside.clear();
          }
          beside.delete(reject);
          resolve(played);
        }, 5);
      });
    },
    score: () => Promise.resolve([]),
    release: () => Promise.resolve(),
  };
  const environment = verifiersEnvironment('toy', {
    bridge: mortal,
    dataset: inputs,
    evalDataset: inputs,
    groups: groupScores(mortal, 'toy'),
    suspects: new Suspects(),
    loaded,
  });
  const opens = (): Promise<Environment> => Promise.resolve(environment);
  const { signal } = new AbortController();
  const rollouts = Array.from({ length: 24 }, (_, i) => {
    const place = { group: i % 3, index: Math.trunc(i / 3), exampleId: i % 3 };
    return playRollout({
      environments: { open: opens, reopen: opens },
      entry: {} as EnvironmentSpec,
      dataset: 'dataset',
      place,
      together: { group: `g${place.group}`, size: 8 },
      openPolicy: () =>
        Object.assign(
          scriptedPolicy(() => 'x'),
          { turns: [], failure: undefined },
        ),
      signal,
    });
  });
  const outcomes = (await Promise.all(rollouts)).map(({ exampleId, outcome }) => `${exampleId} ${outcome}`);
  assert.deepEqual([...new Set(outcomes)].toSorted(), ['0 ok', '1 ok', '2 infra_failure']);
});
