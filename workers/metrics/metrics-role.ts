import type { Server } from 'node:http';
import { Client } from '@temporalio/client';
import { exposition } from '../../backends/metrics/exposition.ts';
import { RatchetError } from '../../core/errors.ts';
import type { ServerKey } from '../../engine/index.ts';
import { makeSecret, takeSecret } from '../../host/project-secret.ts';
import type { Credentials } from '../temporal/credentials.ts';
import { FleetWatch } from './fleet-watch.ts';
import { MetricsFollower } from './metrics-follower.ts';
import { startMetricsServer, defaultMetricsPort } from './metrics-server.ts';
import { dataConverterFor } from '../temporal/payload-codec.ts';
import { choosePort } from '../stack/ports.ts';
import { connectClient } from '../temporal/client-connection.ts';
import { notConnected } from '../temporal/temporal-connection.ts';
import type { TemporalSettings } from '../temporal/temporal-settings.ts';

/**
 * The process that sends metrics: TensorBoard's files, W&B, and `/metrics` for Prometheus at RATCHET_METRICS_HOST and
 * _PORT. `/metrics` requires RATCHET_METRICS_KEY; on the loopback, without that, the project's secret. Ends with
 * SIGTERM or SIGINT.
 */
export async function followMetrics(
  settings: Credentials & { readonly say: (line: string) => void; readonly environment?: NodeJS.ProcessEnv },
): Promise<void> {
  const { payloadKeys, say, environment = process.env } = settings;
  const ending = new AbortController();
  process.on('SIGTERM', () => ending.abort()).on('SIGINT', () => ending.abort());
  const client = await connectTo(settings.temporal);
  const log = (line: string): void => say(`metrics: ${line}`);
  const follower = new MetricsFollower({ client: () => client, log, signal: ending.signal });
  const fleet = new FleetWatch({ client: () => client, log });
  const host = environment['RATCHET_METRICS_HOST'] || '127.0.0.1';
  const chosen = environment['RATCHET_METRICS_KEY'] || null;
  delete environment['RATCHET_METRICS_KEY'];
  // A port in use, or a missing key, must not stop the sinks.
  const server = await serve().catch((error: unknown) => {
    log(`/metrics is not served: ${error instanceof Error ? error.message : String(error)}`);
    return null;
  });
  await Promise.all([follower.run(), fleet.run(ending.signal)]);
  server?.close();
  server?.closeAllConnections();
  await client.connection.close();

  async function connectTo(to: TemporalSettings): Promise<Client> {
    const connection = await connectClient(to).catch(async (cause: unknown) => {
      throw await notConnected(to, cause);
    });
    return new Client({ connection, namespace: to.namespace, dataConverter: dataConverterFor(payloadKeys) });
  }

  async function serve(): Promise<Server> {
    const key: ServerKey =
      chosen === null
        ? { kind: 'secret', value: takeSecret(environment) ?? makeSecret(process.cwd(), environment) }
        : { kind: 'chosen', value: chosen, variable: 'RATCHET_METRICS_KEY' };
    const port = await portFor(environment['RATCHET_METRICS_PORT']);
    const started = await startMetricsServer({
      host,
      port,
      key,
      text: () => exposition([...fleet.samples(), ...follower.samples()]),
      whyNotReady: () => follower.whyNotReady,
    });
    say(`ready at http://${host}:${port}/metrics`);
    return started;
  }
}

async function portFor(written: string | undefined): Promise<number> {
  if (written === undefined || written === '') return choosePort(defaultMetricsPort);
  const port = Number(written);
  if (Number.isInteger(port) && port > 0 && port < 65_536) return port;
  throw new RatchetError(
    'ConfigInvalid',
    `RATCHET_METRICS_PORT: expected a port from 1 to 65535, got ${JSON.stringify(written)}.`,
  );
}
