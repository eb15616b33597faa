/** Episodes of several trained agents, against prime-rl's `rae` and `hierarchical_grpo`; test/data/algorithms/record_roles.py. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { type Baselines, rowsOfEpisode, samplesOf } from '../../../core/rl/rollout/agents.ts';
import type { RoleAdvantage } from '../../../core/settings/learning.ts';
import { filterGroups } from '../../../core/rl/filters/filter-groups.ts';
import { advantagesOf, Packer } from '../../../core/rl/learning/pack.ts';
import { packSamples } from './pack-samples.ts';
import type {
  AgentTrace,
  RewardedRollout,
  ScoredGroup,
  ScoredRollout,
  Turn,
} from '../../../core/rl/rollout/rollout.ts';
import { defaultTrajectories } from '../../../core/rl/rollout/trajectories.ts';
import { batchSizeOf } from '../../../core/rl/learning/selection.ts';
import { accept } from '../../config/read-run.ts';

type Told = readonly [agent: string, reward: number, isTrained: boolean];

const { cases } = JSON.parse(readFileSync(new URL('../../data/algorithms/roles.json', import.meta.url), 'utf8')) as {
  readonly cases: readonly {
    readonly advantage: RoleAdvantage;
    /** [group][episode][trace] */
    readonly groups: readonly (readonly (readonly Told[])[])[];
    readonly advantages: readonly (readonly (readonly (number | null)[])[])[];
    readonly baselines?: Readonly<Record<string, number>>;
  }[];
};

/** A turn of agent `trace`, whose first token identifies the agent and the episode. */
const said = (trace: number, episode: number, finishReason: Turn['finishReason'] = 'stop'): Turn => ({
  promptTokenIds: [1, trace],
  tokenIds: [100 * episode + trace, 0],
  logprobs: [-0.1, -0.2],
  text: '',
  trace,
  finishReason,
  policyStep: 0,
});

const tracesOf = (episode: readonly Told[]): AgentTrace[] =>
  episode.map(([agent, reward, isTrained]) => ({ agent, reward, isTrained, metrics: {} }));

function episodeOf(ordinal: number, index: number, told: readonly Told[], turns?: readonly Turn[]): RewardedRollout {
  return {
    group: ordinal,
    index,
    exampleId: ordinal,
    turns: turns ?? told.map((_, trace) => said(trace, index)),
    outcome: 'ok',
    reward: 0,
    metrics: {},
    traces: tracesOf(told),
  };
}

const groupOf = (ordinal: number, episodes: readonly (readonly Told[])[], environment = 'poker'): ScoredGroup => ({
  ordinal,
  environment,
  exampleId: ordinal,
  epoch: 0,
  policyStep: 0,
  rollouts: episodes.map((told, index) => episodeOf(ordinal, index, told)),
});

const near = (actual: number, expected: number, what: string): void =>
  assert.ok(Math.abs(actual - expected) < 1e-12, `${what}: ${actual} is not ${expected}`);

describe('agents of an episode', () => {
  for (const { advantage, groups, advantages, baselines } of cases) {
    const name =
      advantage.type === 'rae'
        ? `rae, decay ${advantage.decay}`
        : `hierarchical_grpo of ${advantage.episodeAgents.join(', ')}`;
    test(`${name}: each trained agent has the advantage that prime-rl’s own class gives its trace, the others no row`, () => {
      const packer = new Packer({ advantage });
      for (const [g, episodes] of groups.entries()) {
        const { rows } = packer.pack(groupOf(g, episodes));
        const expected = advantages[g]!.flatMap((traces, e) =>
          traces.flatMap((value, trace) => (value === null ? [] : [[100 * e + trace, value] as const])),
        );
        assert.equal(rows.length, expected.length);
        for (const [i, { sample }] of rows.entries()) {
          assert.equal(sample.tokenIds[2], expected[i]![0]);
          near(sample.advantages[2]!, expected[i]![1], `group ${g}, row ${i}`);
        }
      }
      for (const [role, value] of Object.entries(baselines ?? {}))
        near(packer.baselines!['poker']![role]!, value, role);
    });
  }

  test('running means go on from those of the batch before, and two batches give what one of both does', () => {
    const { advantage, groups } = cases[0]!;
    const all = groups.map((episodes, g) => groupOf(g, episodes, g % 2 === 0 ? 'poker' : 'chess'));
    const packed = (from: readonly ScoredGroup[], baselines?: Baselines) => {
      const packer = new Packer({ advantage, ...(baselines && { baselines }) });
      const rows = from.flatMap((group) => packer.pack(group).rows.map(({ sample }) => sample));
      return { rows, baselines: packer.baselines };
    };
    const whole = packed(all);
    const first = packed(all.slice(0, 3));
    const second = packed(all.slice(3), first.baselines);
    assert.deepEqual([...first.rows, ...second.rows], whole.rows);
    assert.deepEqual(second.baselines, whole.baselines);
    assert.deepEqual(Object.keys(whole.baselines!), ['poker', 'chess']);
  });

  test('a rollout of one agent is a role of its own, and one without a reward moves nothing', () => {
    const played = { group: 1, exampleId: 1, metrics: {} };
    const won = (index: number): RewardedRollout => ({
      ...played,
      index,
      turns: [said(0, index)],
      outcome: 'ok',
      reward: 1,
    });
    const rollouts: ScoredRollout[] = [
      won(0),
      { ...played, index: 1, turns: [], outcome: 'timeout', reward: null },
      won(2),
    ];
    const packer = new Packer({ advantage: { type: 'rae', decay: 0.5 } });
    const { rows, advantages } = packer.pack({ ...groupOf(1, []), rollouts });
    assert.deepEqual(
      rows.map(({ sample }) => sample.advantages[2]),
      [1, 0.5],
    );
    assert.deepEqual(
      [...advantages],
      [
        [0, 1],
        [1, 0],
        [2, 0.5],
      ],
    );
    assert.deepEqual(packer.baselines, { poker: { agent: 0.75 } });
  });

  test('without roles all trained agents of a group are compared with one another, as prime-rl’s grpo does', () => {
    const group = groupOf(1, [
      [
        ['white', 1, true],
        ['black', 0, true],
        ['judge', 9, false],
      ],
      [
        ['white', 0.5, true],
        ['black', 0.5, true],
        ['judge', 9, false],
      ],
    ]);
    const { samples, stats } = packSamples([group], { advantage: 'centered' });
    assert.deepEqual(
      samples.map(({ advantages }) => advantages[2]),
      [0.5, -0.5, 0, 0],
    );
    assert.equal(stats.rollouts, 4);
    assert.deepEqual(advantagesOf(group, 'centered'), [0, 0]);
  });

  test('an agent is cut by its own last turn alone', () => {
    const turns = [said(0, 0), said(1, 0, 'length')];
    const episode = {
      ...episodeOf(
        1,
        0,
        [
          ['white', 1, true],
          ['black', 0, true],
        ],
        turns,
      ),
      outcome: 'truncated' as const,
    };
    assert.deepEqual(
      samplesOf(episode).map(({ agent, outcome, reward }) => [agent, outcome, reward]),
      [
        ['white', 'ok', 1],
        ['black', 'truncated', 0],
      ],
    );
    const { samples } = packSamples([{ ...groupOf(1, []), rollouts: [episode] }], {
      advantage: { type: 'rae', decay: 0.95 },
      maskTruncated: true,
    });
    assert.deepEqual(
      samples.map(({ tokenIds }) => tokenIds[2]),
      [0],
    );
    const { rows } = rowsOfEpisode(
      {
        ...episode,
        traces: tracesOf([
          ['white', 1, false],
          ['black', 0, true],
        ]),
      },
      defaultTrajectories,
    );
    assert.deepEqual(
      rows.map(({ sampledAt }) => sampledAt),
      [[-1, -1, 2, 3]],
    );
  });
});

describe('a batch of agents', () => {
  const { spec } = accept(`model = "preset:tiny"
batch_size = 12
rollouts_per_example = 2
trainer = { advantage = { type = "hierarchical_grpo", episode_agents = ["solver"] } }
[[env]]
id = "reverse-text"
`);
  const round = { step: 1, first: 0, last: 1, policyStep: 0, leases: { key: '', sha256: '', bytes: 0 } };
  const scored = { key: '', sha256: '', bytes: 0 };
  const sifted = (groups: readonly ScoredGroup[]) => filterGroups(groups, { round, scored, spec });

  test('counts trained agents, not episodes', () => {
    assert.deepEqual(batchSizeOf(spec), { groups: 3, total: 12 });
    const proposals: (readonly Told[])[] = [
      [
        ['proposer', 0.5, true],
        ['solver', 1, true],
        ['solver', 0, true],
      ],
      [
        ['proposer', 1, false],
        ['solver', 1, true],
        ['solver', 0, true],
      ],
    ];
    const { kept, size } = sifted([groupOf(0, proposals)]);
    assert.deepEqual([kept.ordinals, kept.sizes, size], ['0', [5], 5]);
  });

  test('has no group whose rewards differ between roles alone', () => {
    const alike: readonly Told[] = [
      ['proposer', 0, true],
      ['solver', 1, true],
      ['solver', 1, true],
    ];
    const { kept, ended } = sifted([groupOf(0, [alike, alike])]);
    assert.deepEqual([kept.ordinals, ended], ['', { 'filtered:no_signal': '0' }]);
  });

  test('has every group where each role is measured by its own running mean', () => {
    const advantage = { type: 'rae' as const, decay: 0.95 };
    const { kept } = filterGroups(
      [
        groupOf(0, [
          [
            ['white', 1, true],
            ['black', 1, true],
          ],
        ]),
      ],
      {
        round,
        scored,
        spec: { ...spec, advantage },
      },
    );
    assert.deepEqual([kept.ordinals, kept.sizes], ['0', [2]]);
  });
});
