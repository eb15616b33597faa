import { layout } from '../../runs/layout.ts';
import { firstLineage } from '../../core/names.ts';
import type { ScoredGroup, Turn } from '../../core/rl/rollout/rollout.ts';
import { type Curves, curvesOf } from '../../runs/metrics/curves.ts';
import { type RunPlace, storeOf } from '../../runs/run-access.ts';
import type { Store } from '../../store/index.ts';
import { unpacked } from '../../store/objects.ts';
import { ChatTokenizer } from '../../engine/model/tokenizer/tokenizer.ts';

/** A group of a step, as people read it. */
export interface ShownGroup {
  readonly ordinal: number;
  readonly environment: string;
  readonly exampleId: number;
  readonly policyStep: number;
  readonly rollouts: readonly ShownRollout[];
}

export interface ShownRollout {
  readonly index: number;
  readonly outcome: string;
  /** null after a failure that is not the policy's. */
  readonly reward: number | null;
  readonly error: string | null;
  /** New input of the turn, without what the conversation had before, and the model's answer. */
  readonly turns: readonly { readonly prompt: string; readonly completion: string }[];
}

/** Groups kept in memory and shown. */
const groupsMax = 40;
/** Most characters of a turn's prompt and completion; a cut is marked. */
const charsMax = 20_000;

/** Reads scored rollouts and curves out of a run's store. */
export class StoredRollouts {
  readonly #place: RunPlace;
  readonly #store: Store;
  #tokenizer: Promise<ChatTokenizer | null> | null = null;

  constructor(place: RunPlace) {
    this.#place = place;
    this.#store = storeOf(place);
  }

  /** Curves of all steps that led to the lineage's position. */
  curves(lineage: string): Promise<Curves> {
    return curvesOf({ ...this.#place, lineage }, Infinity);
  }

  /**
   * Groups of a step from all its sampling rounds; the newest if there are many, none if they are not stored (any
   * more).
   */
  async ofStep(lineage: string, step: number): Promise<ShownGroup[]> {
    const prefix = layout.round(lineage, step, 0, 0).replace(/groups_0-0\/$/, '');
    const first = (key: string): number => Number(/groups_(\d+)-/.exec(key)?.[1] ?? -1);
    const keys = layout.scoredIn(await this.#store.list(prefix));
    const rows: string[] = [];
    for (const key of keys.toSorted((a, b) => first(b) - first(a))) {
      const bytes = rows.length < groupsMax ? await this.#store.read(key) : null;
      if (bytes) rows.push(...firstRows(unpacked(bytes, key), groupsMax - rows.length));
    }
    if (rows.length === 0) return [];
    this.#tokenizer ??= this.#readTokenizer();
    const tokenizer = await this.#tokenizer;
    const groups = rows.map((row) => shown(JSON.parse(row) as ScoredGroup, tokenizer));
    return groups.sort((a, b) => a.ordinal - b.ordinal);
  }

  /** Tokenizer of the first stored version; without one prompts are left out. */
  async #readTokenizer(): Promise<ChatTokenizer | null> {
    const keys = await this.#store.list(layout.allWeights(firstLineage));
    const folder = keys.find((key) => key.endsWith('/tokenizer.json'))?.replace(/tokenizer\.json$/, '');
    if (folder === undefined) return null;
    const [tokenizer, config] = await Promise.all(
      ['tokenizer.json', 'tokenizer_config.json'].map((name) => this.#store.read(folder + name)),
    );
    if (!tokenizer || !config) return null;
    const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString('utf8');
    return new ChatTokenizer({ tokenizer: text(tokenizer), config: text(config) }, this.#store.uri + folder);
  }
}

/** Lines, without making text of the rest. */
function firstRows(bytes: Uint8Array, count: number): string[] {
  const rows: string[] = [];
  for (let at = 0; at < bytes.length && rows.length < count;) {
    const end = bytes.indexOf(0x0a, at);
    const next = end < 0 ? bytes.length : end;
    if (next > at) rows.push(Buffer.from(bytes.subarray(at, next)).toString('utf8'));
    at = next + 1;
  }
  return rows;
}

function shown(
  { ordinal, environment, exampleId, policyStep, rollouts }: ScoredGroup,
  tokenizer: ChatTokenizer | null,
): ShownGroup {
  return {
    ordinal,
    environment,
    exampleId,
    policyStep,
    rollouts: rollouts.map(({ index, outcome, reward, error, turns }) => ({
      index,
      outcome,
      reward,
      error: error ?? null,
      turns: turns.map((turn, i) => ({
        prompt: tokenizer === null ? '' : lastOf(tokenizer.decode(newTokens(turn, turns[i - 1]).slice(-charsMax))),
        completion: firstOf(turn.text),
      })),
    })),
  };
}

type Tokens = Pick<Turn, 'promptTokenIds' | 'tokenIds'>;

/** A turn's prompt repeats the conversation before it: only the new part is shown. */
function newTokens({ promptTokenIds }: Tokens, before: Tokens | undefined): readonly number[] {
  if (before === undefined) return promptTokenIds;
  for (const told of [[...before.promptTokenIds, ...before.tokenIds], before.promptTokenIds]) {
    if (told.every((id, i) => promptTokenIds[i] === id)) return promptTokenIds.slice(told.length);
  }
  return promptTokenIds;
}

function firstOf(text: string): string {
  const left = text.length - charsMax;
  return left <= 0 ? text : `${text.slice(0, charsMax)} … (${left} characters more: npx ratchet-rl rollouts)`;
}

function lastOf(text: string): string {
  const left = text.length - charsMax;
  return left <= 0 ? text : `(${left} characters before this: npx ratchet-rl rollouts) … ${text.slice(-charsMax)}`;
}
