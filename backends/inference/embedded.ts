import { isDeepStrictEqual } from 'node:util';
import { RatchetError } from '../../core/errors.ts';
import { onAbort } from '../../core/on-abort.ts';
import { OpenAiInference } from './openai/openai.ts';
import type { PoolMember } from './pool-member.ts';
import type { ServerPool } from './pool.ts';
import type { Sample, SampleRequest } from './types.ts';
import { askFor } from './all-servers.ts';
import { requireFree, samplesIn, samplingBody, withTokenIds } from './openai/openai-bodies.ts';

/**
 * Ratchet's own policy servers, over their OpenAI-compatible routes. Calls in one turn of the event loop are sent as
 * one `/v1/completions` request with many prompts (token ids in, token ids out), one for each server. So an environment
 * may be written one rollout at a time, and 512 of them cost one round trip. Rollouts that can be given up one by one
 * travel with their group alone: it is ready only when all of them have ended.
 */
export class EmbeddedInference extends OpenAiInference {
  readonly #pool: ServerPool;
  #waiting: Waiting[] = [];

  constructor(pool: ServerPool) {
    super(pool);
    this.#pool = pool;
  }

  override async sample(request: SampleRequest): Promise<Sample> {
    requireFree(request, "Ratchet's policy server");
    return new Promise((resolve, reject) => {
      if (this.#waiting.length === 0) setImmediate(() => this.#flush());
      this.#waiting.push({ request, resolve, reject });
    });
  }

  #flush(): void {
    const batches: { readonly to: PoolMember | null; readonly calls: [Waiting, ...Waiting[]] }[] = [];
    const planned = new Map<PoolMember, number>();
    for (const waiting of this.#waiting) {
      const { avoid = [] } = waiting.request.policy;
      const to = this.#pool.place({ ...waiting.request, avoid }, planned);
      if (to) planned.set(to, (planned.get(to) ?? 0) + 1);
      const batch = batches.find((one) => one.to === to && travelTogether(one.calls[0].request, waiting.request));
      if (batch) batch.calls.push(waiting);
      else batches.push({ to, calls: [waiting] });
    }
    this.#waiting = [];
    for (const { to, calls } of batches) void this.#complete(to, calls); // settles every waiting promise, never rejects
  }

  async #complete(to: PoolMember | null, batch: readonly [Waiting, ...Waiting[]]): Promise<void> {
    const requests = batch.map(({ request }) => request);
    const { policy } = requests[0]!;
    const { signal, release } = abortedTogether(batch);
    const call = { to, size: batch.length, signal };
    try {
      const samples = await askFor(this.#pool, policy, call, (member) => complete(member, requests, signal));
      batch.forEach(({ resolve }, i) => resolve(samples[i]!));
    } catch (error) {
      const half = batch.length >> 1;
      const [first, second] = [batch.slice(0, half), batch.slice(half)];
      if (!isOneForAll(error) || !isFilled(first) || !isFilled(second)) {
        for (const { reject } of batch) reject(error);
        return;
      }
      // An error for one prompt hits the whole request; what is too large together may fit in halves.
      await this.#complete(to, first);
      await this.#complete(to, second);
    } finally {
      release();
    }
  }
}

/** A signal that is raised once those of all calls are; before that, a call whose own is raised ends alone. `release` forgets them. */
function abortedTogether(batch: readonly Waiting[]): {
  readonly signal: AbortSignal | undefined;
  readonly release: () => void;
} {
  const signals = batch.map(({ request }) => request.signal);
  const [first] = signals;
  if (signals.every((one) => one === first)) return { signal: first, release: () => undefined };
  const controller = new AbortController();
  const look = (): void => {
    if (signals.every((one) => one?.aborted)) return controller.abort(first?.reason);
    for (const { request, reject } of batch) if (request.signal?.aborted) reject(request.signal.reason);
  };
  const undo = signals.map((one) => onAbort(one, look));
  look(); // a signal that is raised already is not heard of
  return { signal: controller.signal, release: () => undo.forEach((forget) => forget()) };
}

async function complete(
  { server }: PoolMember,
  requests: readonly SampleRequest[],
  signal: AbortSignal | undefined,
): Promise<Sample[]> {
  const { policy } = requests[0]!;
  const body = {
    model: policy.name,
    prompt: requests.map(({ promptTokenIds }) => promptTokenIds),
    seeds: requests.map(({ seed }) => seed),
    ...samplingBody(requests[0]!),
    ...withTokenIds,
  };
  const answer = await server.post('/v1/completions', body, { signal });
  return samplesIn(answer, { count: requests.length, root: server.root });
}

interface Waiting {
  readonly request: SampleRequest;
  readonly resolve: (sample: Sample) => void;
  readonly reject: (error: unknown) => void;
}

/** A refusal that may concern only one of the prompts, or their number. */
function isOneForAll(error: unknown): boolean {
  return error instanceof RatchetError && (error.code === 'PromptTooLong' || error.code === 'OutOfMemory');
}

function isFilled(batch: readonly Waiting[]): batch is readonly [Waiting, ...Waiting[]] {
  return batch.length > 0;
}

/** All answers of a request come at once, and a signal stops it whole: calls share it that have one signal, or one group. */
function travelTogether(a: SampleRequest, b: SampleRequest): boolean {
  const isOneCall = a.signal === b.signal || (a.group !== undefined && a.group === b.group);
  return isOneCall && a.policy.name === b.policy.name && isDeepStrictEqual(samplingBody(a), samplingBody(b));
}
