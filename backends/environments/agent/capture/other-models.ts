import { createHash } from 'node:crypto';
import { RatchetError } from '../../../../core/errors.ts';
import type { JsonValue } from '../../../../core/json-value.ts';
import { promptTokensMost, withinBudget } from '../../../../core/rl/budget-call.ts';
import type { MessageToolCall } from '../../../../core/rl/rollout/rollout.ts';
import type { Budget } from '../../../../core/settings/budgets.ts';
import type { CallTree } from './call-tree.ts';
import type { ModelAnswer, ModelCall } from './model-call.ts';
import type { RolloutNotes } from '../../types.ts';
import type { OtherModel } from './types.ts';

/** An answer of another model as it is written down, with the names that the policy knows. */
interface OtherAnswer {
  readonly content: string;
  readonly reasoning: string;
  readonly calls: readonly MessageToolCall[];
  readonly finishReason: 'stop' | 'length';
  readonly usage: { readonly promptTokens: number; readonly completionTokens: number } | null;
}

type Told = Pick<ModelAnswer, 'id' | 'content' | 'reasoning' | 'calls' | 'finishReason'> & {
  readonly usage: OtherAnswer['usage'];
  readonly isRecalled: boolean;
};

const kind = 'other-model';

/**
 * Passes calls on to other models. Their answers decide what the program does next, so a later attempt gets the same
 * ones: those of equal calls in the order in which they were asked for.
 */
export class OtherModels {
  readonly #notes: RolloutNotes | undefined;
  readonly #tree: CallTree;
  readonly #signal: AbortSignal;
  readonly #budget: Budget | undefined;
  readonly #asked = new Map<string, number>();

  constructor({
    notes,
    tree,
    signal,
    budget,
  }: {
    readonly notes: RolloutNotes | undefined;
    readonly budget: Budget | undefined;
    readonly tree: CallTree;
    readonly signal: AbortSignal;
  }) {
    this.#notes = notes;
    this.#tree = tree;
    this.#signal = signal;
    this.#budget = budget;
  }

  async answer(model: OtherModel, call: ModelCall): Promise<Told> {
    const wanted = this.#map({ messages: call.messages, tools: call.tools }, (text) => this.#tree.toRecorded(text));
    const name = createHash('sha256')
      .update(JSON.stringify([call.model, wanted, call.fields]))
      .digest('hex');
    const nth = this.#asked.get(name) ?? 0;
    this.#asked.set(name, nth + 1);
    const id = `${name.slice(0, 16)}-${nth}`;
    const known = await this.#notes?.get(kind, id);
    const answer = known === undefined ? await this.#note(id, await this.#ask(model, call, wanted)) : answerIn(known);
    const { usage } = answer;
    if (known !== undefined) this.#budget?.adopt({ ...usage, model: call.model });
    return { ...this.#map(answer, (text) => this.#tree.toLive(text)), usage, id, isRecalled: known !== undefined };
  }

  /** The answer that stands. One that is too large for a note is asked for again after a death. */
  async #note(id: string, answer: OtherAnswer): Promise<OtherAnswer> {
    if (this.#notes === undefined) return answer;
    try {
      return answerIn(await this.#notes.put(kind, id, answer as unknown as JsonValue));
    } catch (error) {
      if (error instanceof RangeError) return answer;
      throw new NotWritten(`the answer ${id} was not written down`, { cause: error });
    }
  }

  /** Throws `Unaffordable` where the call may cost more than the budgets have left. */
  async #ask(
    other: OtherModel,
    { model, fields, maxTokens: asked = Infinity }: ModelCall,
    wanted: Pick<ModelCall, 'messages' | 'tools'>,
  ): Promise<OtherAnswer> {
    const most = Math.min(asked, other.maxTokens ?? Infinity);
    const promptTokens = promptTokensMost(wanted);
    let isAsked = false;
    const said = await withinBudget(
      this.#budgetFor(model, most),
      { model, promptTokens, maxTokens: most, signal: this.#signal },
      (maxTokens) => {
        isAsked = true;
        const given = { ...fields, ...(maxTokens === Infinity ? {} : { max_tokens: maxTokens }) };
        return other.chat({ ...wanted, fields: given, signal: this.#signal });
      },
      // A server that does not count is taken to have used all.
      ({ usage }) => usage ?? { promptTokens, completionTokens: most },
    ).catch((error: unknown) => {
      throw isAsked ? error : new Unaffordable('a budget does not allow the call', { cause: error });
    });
    return {
      content: said.text,
      reasoning: said.reasoning ?? '',
      calls: (said.toolCalls ?? []).map((call, i) => ({
        id: said.callIds?.[i] ?? `call_${i}`,
        type: 'function',
        function: call,
      })),
      finishReason: said.finishReason,
      usage: said.usage,
    };
  }

  /** Missing where nothing is limited that the call uses. */
  #budgetFor(model: string, most: number): Budget | undefined {
    const { tokens, money } = this.#budget?.left() ?? {};
    if (tokens === undefined && money === undefined) return undefined;
    if (most < Infinity) return this.#budget;
    const expected = `max_tokens in its [[env.models]], since a budget limits tokens or money`;
    throw new Unaffordable('nothing bounds the answer', {
      cause: new RatchetError(
        'ConfigInvalid',
        `Nothing bounds the tokens of an answer of ${model}: expected ${expected}, or in each of its calls.`,
      ),
    });
  }

  /** All texts of a value with other names. */
  #map<T>(value: T, map: (text: string) => string): T {
    if (typeof value === 'string') return map(value) as T;
    if (Array.isArray(value)) return value.map((one: unknown) => this.#map(one, map)) as T;
    if (typeof value !== 'object' || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, this.#map(one as unknown, map)])) as T;
  }
}

/** A budget does not allow a call, for the reason that is its cause. */
export class Unaffordable extends Error {}

/** The store failed, or another attempt has the rollout. */
export class NotWritten extends Error {}

function answerIn(note: JsonValue): OtherAnswer {
  return note as unknown as OtherAnswer;
}
