import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { openBridge, type Bridge, type BridgeOptions } from '../../backends/environments/verifiers/bridge.ts';
import type {
  LoadedEnvironment,
  LoadRequest,
  WirePlayedRow,
  RolloutRequest,
  SampledTurn,
  Score,
  TurnRequest,
} from '../../backends/environments/verifiers/protocol.ts';
import type { Installed } from '../python-here.ts';

export const modulePaths = [fileURLToPath(new URL('../data/verifiers', import.meta.url))];

/** A score without when it was made; that there is such a time is held here. */
export function untimed(score: Score | undefined): unknown {
  assert(score !== undefined && 'reward' in score);
  const { scored_s: span, ...rest } = score;
  assert(span !== undefined && span[0] > 0 && span[0] <= span[1]);
  return rest;
}

export type TestBridge = Bridge & { readonly folder: string };

/** Judge's key given to children: their logs must not contain it. */
export const plantedKey = 'sk-planted-canary';

/** Bridges of one test file, closed after it. `shared` is one for all tests that leave their child alive: importing verifiers takes seconds. */
export function bridgesOf({ python }: Installed): {
  readonly open: (options?: Partial<BridgeOptions>) => Promise<TestBridge>;
  readonly shared: () => Promise<TestBridge>;
} {
  const opened: TestBridge[] = [];
  const open = async (options: Partial<BridgeOptions> = {}): Promise<TestBridge> => {
    const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-bridge-'));
    const environment = { ...process.env, HF_HUB_OFFLINE: '1', TOY_PLANTED_KEY: plantedKey };
    const given = { modulePaths, environment, variables: ['TOY_PLANTED_KEY'] };
    const bridge = await openBridge({ python, folder, ...given, ...options }).catch(async (error) => {
      await rm(folder, { recursive: true });
      throw error;
    });
    const held = Object.assign(bridge, { folder });
    opened.push(held);
    return held;
  };
  after(async () => {
    await Promise.all(opened.map((bridge) => bridge.close()));
    await Promise.all(opened.map(({ folder }) => rm(folder, { recursive: true, force: true })));
  });
  let common: Promise<TestBridge> | null = null;
  return { open, shared: () => (common ??= open()) };
}

export type Says = (wanted: TurnRequest) => Partial<SampledTurn> | Promise<Partial<SampledTurn>>;

export const text =
  (content: string): Says =>
  () => ({ content });

function turn(said: Partial<SampledTurn>): SampledTurn {
  const usage = { prompt_tokens: 5, completion_tokens: 3 };
  return { content: null, tool_calls: [], finish_reason: 'stop', usage, tokens: null, ...said };
}

export async function play(
  bridge: Bridge,
  env: string,
  input: string,
  says: Says,
  more: Partial<RolloutRequest> & { readonly signal?: AbortSignal } = {},
): Promise<WirePlayedRow> {
  const { signal, ...request } = more;
  return bridge.rollout(
    { env, input, model: 'm', sampling: { max_tokens: 9 }, score: false, keep: false, with_tokens: false, ...request },
    { onSample: async (wanted) => turn(await says(wanted)), signal },
  );
}

export interface Loaded {
  readonly env: string;
  readonly about: LoadedEnvironment;
  /** Lines of its training inputs. */
  readonly inputs: readonly string[];
}

/** Loads `env_id` under a handle of its own. */
export async function loaded(
  bridge: Bridge,
  envId: string,
  args: Record<string, string | number | boolean> = {},
  more: Partial<LoadRequest> = {},
): Promise<Loaded> {
  const { env = `${envId}:${JSON.stringify(args)}` } = more;
  const about = await bridge.load({ env_id: envId, args, ...more, env });
  const { file } = await bridge.inputs({ env, split: 'train' });
  return { env, about, inputs: (await readFile(file, 'utf8')).trim().split('\n') };
}
