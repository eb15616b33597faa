import { setMaxListeners } from 'node:events';
import type { ServerResponse } from 'node:http';
import { setImmediate } from 'node:timers/promises';
import type { SampleResult } from '../../sample/sampler.ts';
import { Choice, type Delta, type ChoiceEnd } from './choice.ts';
import { EventStream } from '../event-stream.ts';
import { HttpError, toHttpError } from '../http-error.ts';
import type { Latencies } from '../latencies.ts';
import type { Plan } from './plan.ts';
import type { HeldVersion } from '../policy-versions.ts';

export interface FinishedChoice extends Delta, ChoiceEnd {
  readonly index: number;
  readonly promptTokenIds: readonly number[];
  /** Under the distribution that was sampled; null when it is the model's own, which `logprobs` describes. */
  readonly samplingLogprobs: readonly number[] | null;
}

export interface AnswerForm {
  readonly whole: (choices: readonly FinishedChoice[], usage: Usage) => Record<string, unknown>;
  /** First event of a choice, if the route has one. */
  readonly opening: (index: number) => Record<string, unknown> | null;
  /** Whether an event without text is worth sending, for its ids or logprobs. */
  readonly tellsTokens: boolean;
  readonly chunk: (index: number, delta: Delta, ending: ChoiceEnd | null) => Record<string, unknown>;
  readonly usageChunk: (usage: Usage) => Record<string, unknown>;
}

interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
}

/** Between looks at the event loop while many choices become text. */
const tokensPerTurn = 1 << 14;

export async function answerWhole(
  plan: Plan,
  form: AnswerForm,
  { latencies, controller }: AnswerParts,
): Promise<Record<string, unknown>> {
  const { version, requests } = plan;
  // Stop strings are looked for while sampling; all else is read off the result.
  const watched = plan.choice.stops.length > 0 ? requests.map(() => new Choice(plan.choice)) : null;
  const watch = latencies.watch(requests.length);
  const { signal } = controller;
  const looked = watched
    ? requests.map((request, i) => ({ ...request, isFinished: () => watched[i]!.isStopped }))
    : requests;
  const onToken = guarded(controller, (index, tokenId, logprob) => {
    watch.sawToken(index);
    watched?.[index]!.add(tokenId, logprob);
  });
  const results = await version.withWeights(
    (parameters) => version.sampler.generate(parameters, looked, { signal, onToken }),
    signal,
  );
  watch.sawEnd();
  requireFinite(version, results);
  const choices: FinishedChoice[] = [];
  let tokens = 0;
  for (const [index, result] of results.entries()) {
    choices.push(finishedChoice(plan, index, result, watched?.[index]));
    tokens += result.tokenIds.length;
    if (tokens < tokensPerTurn) continue;
    tokens = 0;
    await setImmediate();
    signal.throwIfAborted();
  }
  return form.whole(choices, usageOf(plan, results));
}

function finishedChoice(plan: Plan, index: number, result: SampleResult, watched: Choice | undefined): FinishedChoice {
  const choice = watched ?? readChoice(plan, result);
  const ending = choice.finish(result);
  const { tokenIds, logprobs, samplingLogprobs } = result;
  return {
    ...choice.takeDelta(),
    ...ending,
    index,
    tokenIds,
    logprobs,
    samplingLogprobs: samplingLogprobs === logprobs ? null : samplingLogprobs,
    promptTokenIds: plan.requests[index]!.promptTokenIds,
  };
}

/** Reads the choice of a result that was not streamed. */
function readChoice({ choice: options }: Plan, result: SampleResult): Choice {
  const choice = new Choice(options);
  choice.addAll(result.tokenIds);
  return choice;
}

/** Samples each choice by itself and streams its tokens. */
export async function answerStream(plan: Plan, form: AnswerForm, parts: StreamParts): Promise<void> {
  const { controller } = parts;
  setMaxListeners(0, controller.signal); // one per choice
  const events = new EventStream(parts.response);
  try {
    const teller = new Teller({ plan, form, events, controller });
    const watch = parts.latencies.watch(plan.requests.length);
    const results = await Promise.all(
      plan.requests.map((_, index) => sampleOne({ plan, index, teller, watch, controller })),
    );
    watch.sawEnd();
    await teller.finish(controller.signal);
    if (parts.includeUsage) events.send(form.usageChunk(usageOf(plan, results)));
    events.end();
  } catch (error) {
    controller.abort(error);
    // The status is already sent, so the error becomes an event.
    events.sendError(toHttpError(error));
    events.end();
    throw error;
  }
}

interface AnswerParts {
  readonly latencies: Latencies;
  /** The request's controller: aborted when the client disconnects, or by the server when the answer fails. */
  readonly controller: AbortController;
}

interface StreamParts extends AnswerParts {
  readonly response: ServerResponse;
  readonly includeUsage: boolean;
}

interface SampleOne {
  readonly plan: Plan;
  readonly index: number;
  readonly teller: Teller;
  readonly watch: ReturnType<Latencies['watch']>;
  readonly controller: AbortController;
}

async function sampleOne({ plan, index, teller, watch, controller }: SampleOne): Promise<SampleResult> {
  const { sampler } = plan.version;
  const { signal } = controller;
  const request = plan.requests[index]!;
  const choice = new Choice(plan.choice);
  const watched = plan.choice.stops.length > 0 ? { ...request, isFinished: () => choice.isStopped } : request;
  const onToken = guarded(controller, (_, tokenId, logprob) => {
    if (!Number.isFinite(logprob)) throw brokenWeights(plan.version);
    watch.sawToken(index);
    choice.add(tokenId, logprob);
    teller.hasNews(index, choice, null);
  });
  const [result] = await plan.version.withWeights(
    (parameters) => sampler.generate(parameters, [watched], { signal, onToken }),
    signal,
  );
  teller.hasNews(index, choice, choice.finish(result!));
  return result!;
}

type OnToken = (index: number, tokenId: number, logprob: number) => void;

/** An error while one request handles its tokens must not end the batch that it shares with others. */
function guarded(controller: AbortController, onToken: OnToken): OnToken {
  return (index, tokenId, logprob) => {
    try {
      if (!controller.signal.aborted) onToken(index, tokenId, logprob);
    } catch (error) {
      controller.abort(error);
    }
  };
}

/**
 * Sends new tokens once per turn of the event loop, and nothing while the reader lags behind: it then gets more at
 * once.
 */
class Teller {
  readonly #form: AnswerForm;
  readonly #events: EventStream;
  readonly #news = new Map<number, { choice: Choice; ending: ChoiceEnd | null }>();
  readonly #opened: boolean[];
  readonly #controller: AbortController;
  #isScheduled = false;

  constructor({
    plan,
    form,
    events,
    controller,
  }: {
    plan: Plan;
    form: AnswerForm;
    events: EventStream;
    controller: AbortController;
  }) {
    this.#form = form;
    this.#events = events;
    this.#controller = controller;
    this.#opened = plan.requests.map(() => false);
    events.onDrain(() => this.#tell());
  }

  hasNews(index: number, choice: Choice, ending: ChoiceEnd | null): void {
    this.#news.set(index, { choice, ending });
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    void this.#tellSoon();
  }

  /** All has been sampled; returns when it has been sent as well. */
  async finish(signal: AbortSignal): Promise<void> {
    for (this.#tell(); this.#news.size > 0; this.#tell()) await this.#events.drained(signal);
    signal.throwIfAborted();
  }

  async #tellSoon(): Promise<void> {
    await setImmediate();
    this.#isScheduled = false;
    this.#tell();
  }

  #tell(): void {
    try {
      this.#tellNews();
    } catch (error) {
      this.#controller.abort(error);
    }
  }

  #tellNews(): void {
    for (const [index, { choice, ending }] of this.#news) {
      if (this.#events.isFull) return;
      this.#news.delete(index);
      const opening = this.#opened[index] ? null : this.#form.opening(index);
      this.#opened[index] = true;
      if (opening) this.#events.send(opening);
      const delta = choice.takeDelta();
      const hasWords = delta.content !== '' || delta.reasoning !== '' || delta.toolCalls.length > 0;
      const hasTokens = this.#form.tellsTokens && delta.tokenIds.length > 0;
      if (ending || hasWords || hasTokens) this.#events.send(this.#form.chunk(index, delta, ending));
    }
  }
}

function requireFinite(version: HeldVersion, results: readonly SampleResult[]): void {
  if (!results.every(({ logprobs }) => logprobs.every(Number.isFinite))) throw brokenWeights(version);
}

function brokenWeights({ name }: HeldVersion): HttpError {
  const message = `The version "${name}" gives probabilities that are not numbers: its weights are broken.`;
  return new HttpError(500, message, { code: 'CheckpointDamaged', headers: { 'x-should-retry': 'false' } });
}

function usageOf({ prompts }: Plan, results: readonly SampleResult[]): Usage {
  const prompt_tokens = prompts.reduce((sum, prompt) => sum + prompt.length, 0);
  const completion_tokens = results.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens };
}
