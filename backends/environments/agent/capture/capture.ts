import type { IncomingMessage, ServerResponse } from 'node:http';
import { RatchetError } from '../../../../core/errors.ts';
import type { JsonValue } from '../../../../core/json-value.ts';
import type { Turn } from '../../../../core/rl/rollout/rollout.ts';
import { HttpError, toHttpError } from '../../../../engine/server/http-error.ts';
import { shortened } from '../../../../engine/server/json.ts';
import { handleEffect } from '../effect-route.ts';
import type { RolloutNotes } from '../../types.ts';
import { AnswerStream } from './answer-stream.ts';
import { type CallNode, CallTree } from './call-tree.ts';
import { chatForm } from './chat-form.ts';
import { newKey, readBodyOf, requireKey, RolloutAddress, sendJson } from './http-server.ts';
import { messagesForm } from './messages-form.ts';
import type { ApiForm, ModelAnswer, ModelCall } from './model-call.ts';
import { NotWritten, OtherModels, Unaffordable } from './other-models.ts';
import { responsesForm } from './responses-form.ts';
import type { CallCounts, Capture, CaptureOptions, OtherModel, ResumedCalls } from './types.ts';
import { Unheard } from './unheard.ts';

/** Refusals in a row after which the program will not do better. */
const refusalsInRowMax = 8;

/** Errors of a call that its program may avoid: other messages, a shorter history. */
const programsOwn: ReadonlySet<string> = new Set([
  'PromptTooLong',
  'InferenceRejected',
  'Unsupported',
  'ModelUnsupported',
]);

const effects = '/effects/';

const forms: Readonly<Record<string, ApiForm>> = {
  '/chat/completions': chatForm,
  '/responses': responsesForm,
  '/messages': messagesForm,
};

/** Opens the address of one rollout. */
export async function openCapture(options: CaptureOptions): Promise<Capture> {
  const rollout = new CapturedRollout(options);
  return rollout.open();
}

class CapturedRollout implements Capture {
  readonly key = newKey();
  readonly turns: Turn[] = [];
  refusal: unknown = undefined;
  failure: unknown = undefined;
  readonly #options: CaptureOptions;
  readonly #tree: CallTree;
  readonly #earlier: ReadonlySet<string>;
  readonly #others: OtherModels;
  readonly #unheard = new Unheard<CallNode>();
  readonly #ended = new AbortController();
  readonly #toldOf = new Set<string>();
  readonly #calls = { sampled: 0, recalled: 0, kept: 0, others: 0, othersRecalled: 0, refused: 0 };
  readonly #otherUsage = { promptTokens: 0, completionTokens: 0 };
  #address!: RolloutAddress;
  #refusalsInRow = 0;

  constructor(options: CaptureOptions) {
    this.#options = options;
    const { policy, notes, signal, budget, resumed } = options;
    const earlier = (policy.earlier ?? []).filter(({ call }) => call !== undefined);
    this.#earlier = new Set(earlier.map(({ call }) => call!.id));
    this.#tree = new CallTree(earlier);
    this.#others = new OtherModels({ notes, tree: this.#tree, signal, budget });
    if (resumed) this.#goOn(resumed, new Map(earlier.map((turn) => [turn.call!.id, turn])));
  }

  #goOn({ calls, names }: ResumedCalls, earlier: ReadonlyMap<string, Turn>): void {
    const { policy, onTurn } = this.#options;
    policy.keep?.(calls);
    this.#tree.learn(names);
    for (const turn of calls.flatMap((id) => earlier.get(id) ?? [])) {
      this.#tree.keep(turn);
      this.turns.push(turn);
      this.#calls.kept++;
      onTurn?.(turn, { isRecalled: true, seconds: 0 });
    }
  }

  heard(): ResumedCalls {
    return { calls: this.turns.map(({ call }) => call!.id), names: this.#tree.names() };
  }

  async open(): Promise<this> {
    this.#address = await RolloutAddress.open((request, response) => void this.#handle(request, response));
    return this;
  }

  get socket(): string {
    return this.#address.socket;
  }

  get ended(): AbortSignal {
    return this.#ended.signal;
  }

  get calls(): CallCounts {
    return { ...this.#calls, otherUsage: { ...this.#otherUsage } };
  }

  listenOnLoopback(): Promise<number> {
    return this.#address.listenOnLoopback();
  }

  setAside(): ReturnType<Capture['setAside']> {
    return this.#tree.setAside();
  }

  close(): Promise<void> {
    return this.#address.close();
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = (request.url ?? '/').split('?', 1)[0]!.replace(/^\/v1(?=\/)/, '');
    const form = forms[path] ?? (path.startsWith('/messages') ? messagesForm : chatForm);
    try {
      requireKey(request, this.key);
      await this.#route(`${request.method} ${path}`, request, response);
    } catch (error) {
      const refused = toHttpError(error);
      if (refused.status < 500) this.#calls.refused++;
      sendJson(response, refused.status, form.error(refused), refused.headers);
    }
  }

  async #route(route: string, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const [method, path] = route.split(' ') as [string, string];
    const { beside = {}, notes } = this.#options;
    const form = forms[path];
    if (method === 'POST' && form !== undefined) return this.#answer(form, request, response);
    if (route === 'POST /messages/count_tokens') {
      const call = messagesForm.read(await readBodyOf(request), this.#tree);
      return sendJson(response, 200, { input_tokens: this.#countTokens(call) });
    }
    if (method === 'GET' && /^\/models(?:\/|$)/.test(path)) return this.#sendModels(path, request, response);
    if (route === 'GET /budget' && beside.budget) return sendJson(response, 200, beside.budget());
    if (method === 'POST' && path.startsWith(effects) && notes) {
      const { status, body } = await this.#effect(notes, path.slice(effects.length), await readBodyOf(request));
      return sendJson(response, status, body);
    }
    throw new HttpError(404, `There is no ${shortened(route)} here.`);
  }

  /** Ends the rollout when the store fails or another attempt has taken it: the program must not go on. */
  async #effect(notes: RolloutNotes, path: string, body: unknown): ReturnType<typeof handleEffect> {
    try {
      return await handleEffect(notes, path, body as JsonValue);
    } catch (error) {
      this.#end(error);
      throw rolloutEnds(error);
    }
  }

  /** One call, whichever API it came by. */
  async #answer(form: ApiForm, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const call = form.read(await readBodyOf(request), this.#tree);
    const stream = call.isStreamed ? new AnswerStream(response, form) : null;
    try {
      const other = this.#otherModel(call.model);
      const answer = await (other === null ? this.#ofPolicy(call, response) : this.#ofOther(other, call));
      if (stream === null) sendJson(response, 200, form.whole(answer, call));
      else stream.send(form.events(answer, call));
    } catch (error) {
      stream?.stop();
      if (!response.headersSent) throw error;
      const refused = toHttpError(error);
      stream?.send([{ ...(form === chatForm ? {} : { event: 'error' }), data: form.error(refused) }]);
    }
  }

  /** null = the policy. */
  #otherModel(name: string): OtherModel | null {
    const { model, aliases = [], others = {} } = this.#options;
    if (name === model) return null;
    if (Object.hasOwn(others, name)) return others[name]!;
    if (aliases.includes(name) || aliases.includes('*')) return null;
    const known = [model, ...aliases, ...Object.keys(others)].join(', ');
    const message = `The model "${shortened(name, 100)}" does not exist in this rollout. Known: ${known}.`;
    throw new HttpError(404, message, { param: 'model', code: 'model_not_found' });
  }

  async #ofPolicy(call: ModelCall, response: ServerResponse): Promise<ModelAnswer> {
    this.#sayUnhonoured(call);
    const placed = this.#tree.place(call.messages);
    const key = JSON.stringify([placed.after?.id, placed.heard, call.tools]);
    const asking = this.#unheard.take(key) ?? this.#sample(placed, call);
    response.once('close', () => {
      if (response.writableFinished) return;
      this.#unheard.put(key, asking, ({ turn }) => this.#forget(turn));
    });
    const node = await asking;
    if (!response.destroyed) this.turns.push(node.turn);
    return { ...this.#answerOf(node), model: call.model };
  }

  /** The answer never reached the program: it is no turn of the rollout, unless the program asks for it again. */
  #forget(turn: Turn): void {
    const at = this.turns.lastIndexOf(turn);
    if (at >= 0) this.turns.splice(at, 1);
  }

  async #sample(placed: ReturnType<CallTree['place']>, { tools, maxTokens, stop }: ModelCall): Promise<CallNode> {
    const { policy, onTurn } = this.#options;
    const since = performance.now();
    try {
      const turn = await policy.sample(placed.messages, {
        ...(tools.length === 0 ? {} : { tools }),
        call: {
          after: placed.after?.id ?? null,
          heard: placed.heard,
          ...(maxTokens === undefined ? {} : { maxTokens }),
          ...(stop === undefined ? {} : { stop }),
        },
      });
      const node = this.#tree.add(placed, turn);
      const isRecalled = this.#earlier.has(node.id);
      this.#calls[isRecalled ? 'recalled' : 'sampled']++;
      this.refusal = undefined;
      this.#refusalsInRow = 0;
      onTurn?.(turn, { isRecalled, seconds: (performance.now() - since) / 1000 });
      return node;
    } catch (error) {
      throw this.#judged(error);
    }
  }

  /** Why a call was not answered, in words for the program. */
  #judged(error: unknown): HttpError {
    const isProgramsOwn = error instanceof RatchetError && programsOwn.has(error.code);
    if (!isProgramsOwn) {
      this.#end(error);
      return rolloutEnds(error);
    }
    this.refusal = error;
    this.#refusalsInRow++;
    if (this.#refusalsInRow >= refusalsInRowMax) this.#end(error);
    const isTooLong = error.code === 'PromptTooLong';
    const message = isTooLong ? `prompt is too long: ${error.message}` : error.message;
    return new HttpError(400, message, { code: isTooLong ? 'context_length_exceeded' : error.code, cause: error });
  }

  #end(error: unknown): void {
    this.failure ??= error;
    this.#ended.abort(error);
  }

  #answerOf({ turn, id, said }: CallNode): Omit<ModelAnswer, 'model'> {
    const { policy } = this.#options;
    const { promptTokenIds, tokenIds, logprobs } = turn;
    const usage = turn.said?.usage ?? { promptTokens: promptTokenIds.length, completionTokens: tokenIds.length };
    const texts = (): string[] => policy.tokenTexts?.(tokenIds) ?? [];
    const hasTokens = logprobs !== null && tokenIds.length > 0;
    return {
      id,
      createdS: Math.floor(Date.now() / 1000),
      ...said,
      finishReason: turn.finishReason,
      usage,
      tokens: hasTokens ? () => texts().map((text, i) => ({ text, logprob: logprobs[i]! })) : null,
    };
  }

  async #ofOther(model: OtherModel, call: ModelCall): Promise<ModelAnswer> {
    const { usage, isRecalled, ...answer } = await this.#others.answer(model, call).catch((error: unknown) => {
      if (error instanceof Unaffordable) throw this.#judged(error.cause);
      if (error instanceof NotWritten) this.#end(error.cause);
      throw error instanceof NotWritten ? rolloutEnds(error.cause) : error;
    });
    this.#calls.others++;
    if (isRecalled) this.#calls.othersRecalled++;
    else {
      this.#otherUsage.promptTokens += usage?.promptTokens ?? 0;
      this.#otherUsage.completionTokens += usage?.completionTokens ?? 0;
    }
    return {
      ...answer,
      model: call.model,
      createdS: Math.floor(Date.now() / 1000),
      usage: usage ?? { promptTokens: 0, completionTokens: 0 },
      tokens: null,
    };
  }

  #sayUnhonoured({ unhonoured }: ModelCall): void {
    for (const field of unhonoured) {
      if (this.#toldOf.has(field)) continue;
      this.#toldOf.add(field);
      this.#options.say?.(
        `A call sets ${field}, which has no effect: the run's file decides how the policy is sampled.`,
      );
    }
  }

  #countTokens({ messages, tools }: ModelCall): number {
    const { policy } = this.#options;
    const own = policy.countTokens?.(this.#tree.place(messages).messages, { tools });
    return own ?? Math.ceil(JSON.stringify([messages, tools]).length / charactersPerToken);
  }

  #sendModels(path: string, { headers }: IncomingMessage, response: ServerResponse): void {
    const { model, aliases = [], others = {} } = this.#options;
    const names = [...new Set([model, ...aliases.filter((name) => name !== '*'), ...Object.keys(others)])];
    const isAnthropics = headers['anthropic-version'] !== undefined;
    const described = names.map((id) =>
      isAnthropics
        ? { type: 'model', id, display_name: id, created_at: '1970-01-01T00:00:00Z' }
        : { id, object: 'model', created: 0, owned_by: 'ratchet' },
    );
    const [, , asked] = path.split('/');
    if (asked !== undefined && asked !== '') {
      const named = unescaped(asked);
      const found = described.find(({ id }) => id === named);
      if (found === undefined) throw new HttpError(404, 'There is no such model.', { code: 'model_not_found' });
      return sendJson(response, 200, found);
    }
    const ends = { has_more: false, first_id: names[0], last_id: names.at(-1) };
    sendJson(response, 200, isAnthropics ? { data: described, ...ends } : { object: 'list', data: described });
  }
}

function rolloutEnds(cause: unknown): HttpError {
  const headers = { 'x-should-retry': 'false' };
  return new HttpError(503, 'The rollout ends: what it needs does not answer.', { cause, headers });
}

/** For models behind an API, which count tokens themselves and tell afterwards. */
const charactersPerToken = 4;

/** A part of an address as it was meant; null if its escapes are no text. */
function unescaped(part: string): string | null {
  try {
    return decodeURIComponent(part);
  } catch {
    return null;
  }
}
