import type { IncomingMessage, ServerResponse } from 'node:http';
import { RatchetError } from '../../../../core/errors.ts';
import type { JsonValue } from '../../../../core/json-value.ts';
import type { Turn } from '../../../../core/rl/rollout/rollout.ts';
import { HttpError, toHttpError } from '../../../../engine/server/http-error.ts';
import { sendText } from '../../../../engine/server/http.ts';
import { parseBoundedJson, shortened } from '../../../../engine/server/json.ts';
import { handleEffect, notesHere } from '../effect-route.ts';
import type { RolloutNotes } from '../../types.ts';
import { AnswerStream } from './answer-stream.ts';
import { type CallNode, CallTree, type PlacedCall } from './call-tree.ts';
import { chatForm } from './chat-form.ts';
import { beginningsOfAttempts } from './earlier-attempts.ts';
import { HiddenValues } from './hidden-values.ts';
import { newKey, readBodyOf, requireKey, RolloutAddress } from './http-server.ts';
import { messagesForm } from './messages-form.ts';
import type { ApiForm, ModelAnswer, ModelCall } from './model-call.ts';
import { NotWritten, OtherModels, Unaffordable } from './other-models.ts';
import { responsesForm } from './responses-form.ts';
import type { CallCounts, Capture, CaptureOptions, OtherModel, ResumedCalls } from './types.ts';
import { Unheard } from './unheard.ts';

/** Refusals in a row after which the program will not do better. */
const refusalsInRowMax = 8;

/** Names of fields without effect that are kept for people. */
const ignoredMax = 50;

/** Errors of a call that its program may avoid: other messages, a shorter history. */
const programsOwn: ReadonlySet<string> = new Set([
  'PromptTooLong',
  'InferenceRejected',
  'Unsupported',
  'ModelUnsupported',
]);

const effects = '/effects/';
const settleEnd = '/settle';

const forms: Readonly<Record<string, ApiForm>> = {
  '/chat/completions': chatForm,
  '/responses': responsesForm,
  '/messages': messagesForm,
};

/** Opens the address of one rollout. */
export async function openCapture(options: CaptureOptions): Promise<Capture> {
  const { policy, notes } = options;
  const earlier = (policy.earlier ?? []).filter(({ call }) => call !== undefined);
  return new CapturedRollout(options, earlier, await beginningsOfAttempts(notes, earlier)).open();
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
  readonly #closing = new AbortController();
  /** Raised when no call is answered any more. */
  readonly #over: AbortSignal;
  readonly #hidden: HiddenValues;
  readonly #ignored = new Set<string>();
  readonly #calls = { sampled: 0, recalled: 0, kept: 0, others: 0, othersRecalled: 0, refused: 0 };
  readonly #otherUsage = { promptTokens: 0, completionTokens: 0 };
  #requests = 0;
  #open = 0;
  /** Notes of its effects. */
  readonly #notes: RolloutNotes;
  /** Keys of effects that the program was told to make and has not settled. */
  readonly #effects = new Set<string>();
  /** Ends of the newest request about each effect that is under way. */
  readonly #effectTurns = new Map<string, Promise<void>>();
  #address!: RolloutAddress;
  #refusalsInRow = 0;

  constructor(options: CaptureOptions, earlier: readonly Turn[], attempts: readonly number[]) {
    this.#options = options;
    const { notes, signal, budget, resumed, secrets = [] } = options;
    this.#hidden = new HiddenValues(this.key, secrets);
    this.#notes = notes ?? notesHere();
    this.#over = AbortSignal.any([signal, this.#closing.signal]);
    this.#earlier = new Set(earlier.map(({ call }) => call!.id));
    this.#tree = new CallTree(earlier, attempts);
    this.#others = new OtherModels({ notes, tree: this.#tree, signal: this.#over, budget });
    if (resumed) this.#goOn(resumed, new Map(earlier.map((turn) => [turn.call!.id, turn])));
  }

  #goOn({ calls, names, instructed = [] }: ResumedCalls, earlier: ReadonlyMap<string, Turn>): void {
    const { policy, onTurn } = this.#options;
    policy.keep?.(calls);
    this.#tree.learn(names);
    for (const turn of calls.flatMap((id) => earlier.get(id) ?? [])) {
      this.#tree.keep(turn, { isInstructed: instructed.includes(turn.call!.id) });
      this.turns.push(turn);
      this.#calls.kept++;
      onTurn?.(turn, { isRecalled: true, seconds: 0 });
    }
  }

  heard(): ResumedCalls {
    const calls = this.turns.map(({ call }) => call!.id);
    const instructed = calls.filter((id) => this.#tree.isInstructed(id));
    return { calls, names: this.#tree.names(), ...(instructed.length === 0 ? {} : { instructed }) };
  }

  underWay(): ReturnType<Capture['underWay']> {
    return { requests: this.#requests, open: this.#open, effects: this.#effects.size };
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

  mapped(): ReturnType<Capture['mapped']> {
    return this.#tree.mapped();
  }

  setAside(): ReturnType<Capture['setAside']> {
    return this.#tree.setAside();
  }

  get ignored(): readonly string[] {
    return [...this.#ignored];
  }

  close(): Promise<void> {
    this.#closing.abort(new Error('The address of this rollout is closed.'));
    return this.#address.close();
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = (request.url ?? '/')
      .split('?', 1)[0]!
      .replaceAll(/\/{2,}/g, '/')
      .replace(/^\/v1(?=\/)/, '');
    const form = forms[path] ?? (path.startsWith('/messages') ? messagesForm : chatForm);
    this.#requests += 1;
    this.#open += 1;
    try {
      requireKey(request, this.key);
      await this.#route(path, request, response);
    } catch (error) {
      const refused = toHttpError(error);
      if (refused.status < 500) this.#calls.refused++;
      this.#send(response, refused.status, form.error(refused), refused.headers);
    } finally {
      this.#open -= 1;
    }
  }

  async #route(path: string, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { beside = {} } = this.#options;
    const form = forms[path];
    const asks = (): Promise<unknown> => this.#body(request);
    if (form !== undefined) {
      requireMethod(request, path, 'POST');
      return this.#answer(form, request, response);
    }
    if (path === '/messages/count_tokens') {
      requireMethod(request, path, 'POST');
      const call = messagesForm.read(await asks(), this.#tree);
      return this.#send(response, 200, { input_tokens: this.#countTokens(call) });
    }
    if (/^\/models(?:\/|$)/.test(path)) {
      requireMethod(request, path, 'GET', 'HEAD');
      return this.#sendModels(path, request, response);
    }
    if (path === '/budget') {
      requireMethod(request, path, 'GET', 'HEAD');
      return this.#send(response, 200, beside.budget?.() ?? {});
    }
    if (path.startsWith(effects)) {
      requireMethod(request, path, 'POST');
      const { status, body } = await this.#effect(this.#notes, path, await asks());
      return this.#send(response, status, body);
    }
    throw new HttpError(404, `There is no ${shortened(`${request.method} ${path}`)} here.`);
  }

  async #body(request: IncomingMessage): Promise<unknown> {
    const body = await readBodyOf(request);
    return body.length === 0 ? {} : parseBoundedJson(this.#hidden.inward(body));
  }

  #send(response: ServerResponse, status: number, body: unknown, headers: Readonly<Record<string, string>> = {}): void {
    const text = this.#hidden.outward(JSON.stringify(body));
    sendText(response, status, text, { 'content-type': 'application/json', ...headers });
  }

  /** Ends the rollout when the store fails or another attempt has taken it: the program must not go on. */
  async #effect(notes: RolloutNotes, path: string, body: unknown): ReturnType<typeof handleEffect> {
    const asked = this.#askedEffect(path);
    try {
      return await this.#inTurn(asked.key, async () => {
        const { making, settled, ...answer } = await handleEffect(notes, asked, body as JsonValue, this.#effects);
        if (making !== undefined) this.#effects.add(making);
        if (settled !== undefined) this.#effects.delete(settled);
        return answer;
      });
    } catch (error) {
      this.#end(error);
      throw rolloutEnds(error);
    }
  }

  /** Requests about one effect, one after the other: the second begin of a call is to know of the first. */
  async #inTurn<T>(key: string, work: () => Promise<T>): Promise<T> {
    const turn = (this.#effectTurns.get(key) ?? Promise.resolve()).then(work);
    const ended = turn.then(
      () => undefined,
      () => undefined, // its caller gets the error
    );
    this.#effectTurns.set(key, ended);
    try {
      return await turn;
    } finally {
      if (this.#effectTurns.get(key) === ended) this.#effectTurns.delete(key);
    }
  }

  /** Its key is stored, as bodies are: the key of the rollout differs between attempts, and is no part of it. */
  #askedEffect(path: string): Parameters<typeof handleEffect>[1] {
    const isSettle = path.endsWith(settleEnd);
    const written = path.slice(effects.length, isSettle ? -settleEnd.length : undefined);
    const key = unescaped(written);
    if (key === null)
      throw new HttpError(400, `Expected a key in percent-encoded UTF-8, got ${shortened(written, 200)}.`);
    return { key: this.#hidden.inward(Buffer.from(key)).toString(), isSettle };
  }

  /** One call, whichever API it came by. */
  async #answer(form: ApiForm, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const call = form.read(await this.#body(request), this.#tree);
    const stream = call.isStreamed ? new AnswerStream(response, form, (text) => this.#hidden.outward(text)) : null;
    try {
      if (this.#over.aborted || this.#ended.signal.aborted) throw rolloutEnds(this.failure);
      const other = this.#otherModel(call.model);
      const answer = await (other === null ? this.#ofPolicy(call, request, response) : this.#ofOther(other, call));
      if (stream === null) this.#send(response, 200, form.whole(answer, call));
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

  async #ofPolicy(call: ModelCall, request: IncomingMessage, response: ServerResponse): Promise<ModelAnswer> {
    if (call.refusal !== null) throw call.refusal;
    for (const field of call.ignored) if (this.#ignored.size < ignoredMax) this.#ignored.add(field);
    const placed = this.#tree.place(call);
    const { tools, maxTokens, stop, constraints } = call;
    const key = JSON.stringify([placed.after?.id, placed.heard, tools, maxTokens, stop, constraints]);
    const heard = isRetry(request) ? this.#tree.answerTo(placed) : undefined;
    const asking = this.#unheard.take(key) ?? (heard ? Promise.resolve(heard) : this.#sample(placed, call));
    // Node says `finish` of an answer that a broken connection cut off as well.
    let isHeard = false;
    response.once('finish', () => (isHeard = !request.socket.destroyed));
    response.once('close', () => {
      if (isHeard) return;
      this.#unheard.put(key, asking, ({ turn }) => this.#forget(turn));
    });
    const node = await asking;
    if (!response.destroyed && !this.turns.includes(node.turn)) this.turns.push(node.turn);
    return { ...this.#answerOf(node), model: call.model };
  }

  /** The answer never reached the program: it is no turn of the rollout, unless the program asks for it again. */
  #forget(turn: Turn): void {
    const at = this.turns.lastIndexOf(turn);
    if (at >= 0) this.turns.splice(at, 1);
  }

  async #sample(placed: PlacedCall, { tools, maxTokens, stop, constraints }: ModelCall): Promise<CallNode> {
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
          ...(Object.keys(constraints).length === 0 ? {} : { constraints }),
          signal: this.#over,
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
    if (this.#closing.signal.aborted) return rolloutEnds(error);
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
    const [, param] = /^"([\w.]+)"/.exec(message) ?? [];
    const code = isTooLong ? 'context_length_exceeded' : (param && 'unsupported_parameter') || error.code;
    return new HttpError(400, message, { ...(param === undefined ? {} : { param }), code, cause: error });
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

  #countTokens(call: ModelCall): number {
    const { policy } = this.#options;
    const { messages, tools } = call;
    const own = policy.countTokens?.(this.#tree.place(call).messages, { tools });
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
      return this.#send(response, 200, found);
    }
    const ends = { has_more: false, first_id: names[0], last_id: names.at(-1) };
    this.#send(response, 200, isAnthropics ? { data: described, ...ends } : { object: 'list', data: described });
  }
}

function requireMethod({ method = 'GET' }: IncomingMessage, path: string, ...allowed: string[]): void {
  if (allowed.includes(method)) return;
  const message = `${path} takes ${allowed.join(' and ')}, not ${method}.`;
  throw new HttpError(405, message, { headers: { allow: allowed.join(', ') } });
}

/** OpenAI's and Anthropic's clients number their attempts: at a further one they did not get the answer of the one before. */
function isRetry({ headers }: IncomingMessage): boolean {
  return Number(headers['x-stainless-retry-count'] ?? 0) > 0;
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
