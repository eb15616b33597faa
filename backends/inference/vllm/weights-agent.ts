import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import { problemsIn } from '../../../core/problems-in.ts';
import { runNamePattern, weightsAgentKeyVar } from '../../../core/names.ts';
import { Gate, type ServerKey } from '../../../engine/server/gate.ts';
import { isLoopback } from '../../../engine/server/loopback.ts';
import { openRunStore } from '../../../store/index.ts';
import { verifyVersion } from '../../../store/version-files.ts';
import { weightsFolder } from '../../../store/weights-folder.ts';

interface WeightsAgentOptions {
  /** Place of the run folders; others are refused. */
  readonly storeUri: string;
  readonly host?: string;
  /** 0 = any free port. */
  readonly port: number;
  /** Required for every request but `/health`. Beyond loopback it must be a chosen key. */
  readonly key: ServerKey;
  readonly log: (line: string) => void;
}

interface WeightsAgent {
  readonly url: string;
  close(): Promise<void>;
}

const Stored = z.strictObject({
  key: z.string().regex(/^[\w./-]+$/),
  sha256: z.string().regex(/^[0-9a-f]{64}$/),
  bytes: z.int().min(0),
});

/** A version of a run, from its commit. Its paths are those of the store, and lead nowhere else. */
const Wanted = z.strictObject({
  run: z.string().regex(runNamePattern),
  weights: z.string().regex(/^(?:lineages\/[a-z0-9]+\/)?weights\/step_\d+(?:\.r\d+)?\/$/),
  file: Stored,
  sums: Stored,
});

const bodyBytesMax = 16 * 1024;

/**
 * A process beside an inference server on another host: `POST /locate` fetches a version from the store, once, verifies
 * its sha256, and answers with the folder on its machine.
 */
export async function startWeightsAgent(options: WeightsAgentOptions): Promise<WeightsAgent> {
  const { host = '127.0.0.1', port, key } = options;
  if (!isLoopback(host) && key.kind !== 'chosen') {
    throw new RatchetError(
      'ConfigInvalid',
      `Listening on ${host} would let others fetch weights here. Expected a key in ${weightsAgentKeyVar}, here and where the workers are started, or the host 127.0.0.1.`,
    );
  }
  const gate = new Gate(key);
  const server = createServer((request, response) => void answer({ ...options, gate }, request, response));
  server.listen(port, host);
  await once(server, 'listening').catch((cause: unknown) => {
    throw new RatchetError(
      'ServerUnavailable',
      `The weights agent cannot listen on ${host}:${port}: ${String(cause)}.`,
      { cause },
    );
  });
  const { port: chosen } = server.address() as AddressInfo;
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${chosen}`,
    async close() {
      const closed = once(server, 'close');
      server.close();
      server.closeAllConnections();
      await closed;
    },
  };
}

async function answer(
  options: WeightsAgentOptions & { readonly gate: Gate },
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const { gate } = options;
  const say = (status: number, body: Record<string, unknown>, headers: Record<string, string> = {}): void => {
    const text = JSON.stringify(body);
    const length = Buffer.byteLength(text);
    response.writeHead(status, { 'content-type': 'application/json', 'content-length': length, ...headers }).end(text);
  };
  try {
    if (request.method === 'GET' && request.url === '/health') return say(200, { status: 'ok' }, gate.proof(request));
    if (request.method !== 'POST' || request.url !== '/locate') return say(404, { error: 'Expected POST /locate.' });
    const refusal = gate.refuse(request.headers);
    if (refusal !== null) return say(refusal.status, { error: refusal.message });
    const wanted = Wanted.safeParse(await readBody(request));
    if (!wanted.success || !isInside(wanted.data)) {
      return say(400, {
        error: `Expected {run, weights, file, sums}: ${wanted.success ? 'the file is elsewhere' : problemsIn(wanted.error)}`,
      });
    }
    const { run, weights, file, sums } = wanted.data;
    const startedAt = performance.now();
    const store = openRunStore(options.storeUri, run);
    const folder = await weightsFolder(store, weights);
    await verifyVersion(store, { weights, file, sums });
    options.log(
      `${run} ${weights}: ${file.bytes} bytes as ${file.sha256.slice(0, 12)}… in ${folder}, ${Math.round(performance.now() - startedAt)} ms`,
    );
    say(200, { folder });
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    options.log(`refused: ${message}`);
    say(error instanceof RatchetError && !error.isRetryable ? 422 : 503, { error: message });
  }
}

function isInside({ weights, file, sums }: z.infer<typeof Wanted>): boolean {
  return [file, sums].every(({ key }) => key.startsWith(weights) && !key.includes('..'));
}

async function readBody(request: IncomingMessage): Promise<unknown> {
  let text = '';
  for await (const chunk of request) {
    text += String(chunk);
    if (text.length > bodyBytesMax)
      throw new RatchetError('InferenceRejected', `The request has more than ${bodyBytesMax} bytes.`);
  }
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return null; // reported like any unexpected body
  }
}
