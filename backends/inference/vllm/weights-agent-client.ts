import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import { jsonOrNull } from '../../../core/json-or-null.ts';
import { quoted } from '../../../core/steering.ts';
import { weightsAgentKeyVar } from '../../../core/names.ts';
import { HttpClient, NoAnswer } from '../http-client.ts';
import type { ServedPolicy } from '../../../core/rl/run-state.ts';

const Located = z.object({ folder: z.string().min(1) });

/** Limit for fetching a large version over a network. */
const fetchMs = 1_800_000;

/**
 * Requests a version from a `ratchet weights-agent`: it fetches the version from the store, verifies it, and returns
 * the folder on its machine.
 */
export function askWeightsAgent(url: string): (policy: ServedPolicy) => Promise<string> {
  return async ({ name, version }) => {
    const key = process.env[weightsAgentKeyVar];
    const http = new HttpClient({
      what: 'The weights agent ([inference] weights_agent)',
      url,
      keys: key ? [weightsAgentKeyVar] : [],
    });
    const headers = (): Record<string, string> => (key ? { authorization: `Bearer ${key}` } : {});
    const { weights, file, sums } = version;
    const body = { run: name.split(':', 1)[0]!, weights, file, sums };
    const answer = await http
      .ask({ method: 'POST', route: '/locate', body, headers, timeoutMs: fetchMs })
      .catch((cause: unknown) => {
        if (!(cause instanceof NoAnswer)) throw cause;
        throw new RatchetError(
          'InferenceUnavailable',
          `The weights agent at ${url} does not answer: ${cause.message}. Start it beside the vLLM server: npx ratchet-rl weights-agent --store URI`,
          { cause },
        );
      })
      .finally(() => http.close());
    if (answer.status >= 300) {
      const isRefusal = answer.status === 400 || answer.status === 401 || answer.status === 403;
      throw new RatchetError(
        isRefusal ? 'InferenceRejected' : 'InferenceUnavailable',
        `The weights agent at ${url} answered ${answer.status}: ${answer.text.slice(0, 500)}`,
      );
    }
    const located = Located.safeParse(jsonOrNull(answer.text));
    if (located.success) return located.data.folder;
    throw new RatchetError(
      'InferenceUnavailable',
      `The weights agent at ${url} answered ${answer.status} with ${quoted(answer.text, 200)}, expected the folder of a version. Is it a weights agent, and of this version?`,
    );
  };
}
