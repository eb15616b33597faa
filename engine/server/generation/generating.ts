import type { IncomingMessage, ServerResponse } from 'node:http';
import { waitingRequestsMax } from '../../limits.ts';
import type { SessionOptions } from '../../onnx/session.ts';
import type { RequestBudget } from './admission.ts';
import { answerStream, answerWhole } from './generation.ts';
import type { Generation } from './generations.ts';
import { HttpError } from '../http-error.ts';
import { sendJson } from '../http.ts';
import { Latencies } from '../latencies.ts';
import { PauseGate } from './pause-gate.ts';
import type { PolicyVersions } from '../policy-versions.ts';
import { PromptScorer } from './prompt-scores.ts';

/** Requests that generate: each waits while the server is paused, and ends when its client disconnects. */
export class Generating {
  readonly #versions: PolicyVersions;
  readonly #scorer: PromptScorer;
  readonly #gate = new PauseGate(waitingRequestsMax);
  readonly #latencies = new Latencies();
  readonly #running = new Set<AbortController>();

  constructor(versions: PolicyVersions, session: SessionOptions) {
    this.#versions = versions;
    this.#scorer = new PromptScorer(session);
  }

  get isPaused(): boolean {
    return this.#gate.isPaused;
  }

  pause(): void {
    this.#gate.pause();
  }

  resume(): void {
    this.#gate.resume();
  }

  figures() {
    const requestsWaiting = this.#gate.waitingCount;
    return { requestsRunning: this.#running.size - requestsWaiting, requestsWaiting, latencies: this.#latencies };
  }

  async close(): Promise<void> {
    for (const controller of this.#running) controller.abort(new HttpError(503, 'The server is closing.'));
    this.#gate.resume();
    await this.#scorer.close();
  }

  async answer(
    { model, stream, plan, form, scoresPrompts = false }: Generation,
    { request, response, budget }: { request: IncomingMessage; response: ServerResponse; budget: RequestBudget },
  ): Promise<void> {
    await this.#whileConnected(request, response, async (controller) => {
      const { signal } = controller;
      await this.#gate.pass(signal);
      await this.#versions.use(model, async (version) => {
        const planned = await plan(version, signal, budget);
        const parts = { latencies: this.#latencies, controller };
        if (stream) return answerStream(planned, form(planned, null), { ...parts, ...stream, response });
        const scores = scoresPrompts ? await this.#scorer.score(version, planned.prompts, signal) : null;
        sendJson(response, 200, await answerWhole(planned, form(planned, scores), parts));
      });
    });
  }

  /** Runs `work` with a controller that aborts when the client disconnects. */
  async #whileConnected(
    request: IncomingMessage,
    response: ServerResponse,
    work: (controller: AbortController) => Promise<void>,
  ): Promise<void> {
    // One controller for all: signals combined by AbortSignal.any are never collected by Node 20 once listened to.
    const controller = new AbortController();
    const giveUp = (): void => controller.abort(new HttpError(499, 'The client closed the connection.'));
    // A pipelined response learns of its closed connection only once it is its turn, so the connection is checked
    // directly.
    const { socket } = request;
    if (socket.destroyed) giveUp();
    socket.once('close', giveUp);
    response.once('close', giveUp);
    this.#running.add(controller);
    try {
      await work(controller);
    } finally {
      this.#running.delete(controller);
      socket.off('close', giveUp);
    }
  }
}
