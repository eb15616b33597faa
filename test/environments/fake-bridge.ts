import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { present } from '../../core/present.ts';
import type { Environment } from '../../backends/environments/types.ts';
import {
  groupScores,
  type PlayingBridge,
  verifiersEnvironment,
} from '../../backends/environments/verifiers/environment.ts';
import { openInputs } from '../../backends/environments/verifiers/inputs.ts';
import type {
  LoadedEnvironment,
  RolloutRequest,
  SampledTurn,
  WireMessage,
} from '../../backends/environments/verifiers/protocol.ts';
import { Suspects } from '../../backends/environments/verifiers/suspects.ts';

/** A bridge to Python that is a few lines of TypeScript. */

type Say = (messages: readonly WireMessage[], tools?: readonly object[], trace?: string) => Promise<SampledTurn>;
type Row = Readonly<Record<string, never>>;

/** Fake of a Python child's work on a rollout; `live` rollouts are kept until they are released. */
interface FakeChild {
  play(say: Say, request: RolloutRequest): Promise<Partial<Awaited<ReturnType<PlayingBridge['rollout']>>>>;
  score?: (rollouts: readonly object[]) => number[];
}

export class FakeBridge implements PlayingBridge {
  readonly child: FakeChild;
  readonly live = new Set<string>();
  readonly scored: (readonly object[])[] = [];
  #number = 0;

  constructor(child: FakeChild) {
    this.child = child;
  }

  async rollout(...[request, { onSample, signal }]: Parameters<PlayingBridge['rollout']>) {
    const played = await this.child.play(
      (messages, tools, trace) =>
        onSample({
          ...present({ trace }),
          messages,
          tools: (tools as readonly Row[]) ?? null,
          sampling: {},
          signal: signal ?? new AbortController().signal,
        }),
      request,
    );
    const live = request.keep ? `env#${++this.#number}` : null;
    if (live) this.live.add(live);
    return {
      row: {},
      outcome: 'ok',
      error: null,
      judged: null,
      scorable: true,
      scoring_why: null,
      ...played,
      live,
    } as const;
  }

  score({ rollouts }: Parameters<PlayingBridge['score']>[0]) {
    this.scored.push(rollouts);
    for (const one of rollouts) if ('live' in one && !this.live.has(String(one.live))) throw new Error('not alive');
    const rewards = this.child.score?.(rollouts) ?? rollouts.map(() => 1);
    return Promise.resolve(rewards.map((reward) => ({ reward, metrics: { right: reward } })));
  }

  release({ live }: Parameters<PlayingBridge['release']>[0]) {
    for (const one of live) this.live.delete(String(one));
    return Promise.resolve();
  }
}

export const prompt = [
  { role: 'system', content: 'Be short.' },
  { role: 'user', content: 'Say ab.' },
] as const;

export async function environmentOf(
  t: TestContext,
  bridge: PlayingBridge,
  loaded: Partial<LoadedEnvironment> = {},
): Promise<Environment> {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-inputs-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const file = path.join(folder, 'rows.jsonl');
  const rows = [0, 1, 2].map((example_id) => ({ prompt, example_id, answer: `a${example_id}`, info: { n: 1.5 } }));
  writeFileSync(file, rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  const inputs = await openInputs(file);
  t.after(() => inputs.close());
  return verifiersEnvironment('toy', {
    bridge,
    dataset: inputs,
    evalDataset: inputs,
    groups: groupScores(bridge, 'toy'),
    suspects: new Suspects(),
    loaded: {
      env: 'toy',
      api: 'v0',
      class: 'MultiTurnEnv',
      requires_group: false,
      provides_advantages: false,
      reward_names: ['right'],
      weights: [1],
      system_prompt: null,
      tools: null,
      max_turns: 4,
      sampling: {},
      scoring: 'stored',
      scoring_why: null,
      is_single_turn: false,
      ...loaded,
    },
  });
}
