import { layout } from '../../runs/layout.ts';
import { firstLineage } from '../../core/names.ts';
import type { ScoredGroup, Turn } from '../../core/rl/rollout.ts';
import { type Curves, curvesOf } from '../../runs/curves.ts';
import { type RunPlace, storeOf } from '../../runs/run-access.ts';
import type { Store } from '../../backends/store/index.ts';
import { unpacked } from '../../backends/store/objects.ts';
import { ChatTokenizer } from '../../engine/model/tokenizer.ts';

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
  /** Null where something failed that is not the policy's. */
  readonly reward: number | null;
  readonly error: string | null;
  /** What the model was given in the turn that it had not been given or said before, and what it said. */
  readonly turns: readonly { readonly prompt: string; readonly completion: string }[];
}

/** Groups kept in memory and shown. */
const groupsMax = 40;
/** Characters of one turn, of prompt and of completion; more are left out, and that is said. */
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

  /** Reads the curves of all steps that led to where the lineage stands. */
  curves(lineage: string): Promise<Curves> {
    return curvesOf({ ...this.#place, lineage }, Infinity);
  }

  /** The groups of a step, of all its sampling rounds; the newest ones where they are many, none when they are not (any more) there. */
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

  /** That of the first version there is; without one prompts are left out. */
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

/** A turn's prompt repeats the conversation before it: only what is new is shown. */
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
