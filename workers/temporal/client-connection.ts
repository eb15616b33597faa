import { Connection, type ConnectionOptions } from '@temporalio/client';
import { connectionOptions, overTls } from './temporal-connection.ts';
import type { TemporalSettings } from './temporal-settings.ts';

/**
 * A connection of the SDK's client that follows renewed files by itself: each call has the key, and each new TLS
 * connection presents the certificates, as they are by then. The SDK keeps those of the start, and would be turned away
 * for ever once they have expired.
 */
export async function connectClient(
  settings: TemporalSettings,
  more: Pick<ConnectionOptions, 'connectTimeout' | 'interceptors'> = {},
): Promise<Connection> {
  const { apiKey } = settings;
  const connection = Connection.lazy({
    ...connectionOptions(settings),
    ...more,
    ...(apiKey === null ? {} : { apiKey: renewedKey(settings, apiKey) }),
  });
  if (settings.tls !== null) renewCertificates(connection, settings);
  await connection.ensureConnected();
  return connection;
}

/** gRPC has no public way to other certificates for a channel. This is where it asks for each TLS connection. */
function renewCertificates({ options: { credentials } }: Connection, settings: TemporalSettings): void {
  const usual = credentials._createSecureConnector.bind(credentials);
  credentials._createSecureConnector = (...asked) => {
    const connector = usual(...asked);
    // While files are replaced one after another this fails with the reason, and gRPC connects again.
    connector.connect = async (socket) => ({ socket: await overTls(now(settings), socket), secure: true });
    return connector;
  };
}

function renewedKey(settings: TemporalSettings, first: string): () => string {
  let key = first;
  return () => {
    try {
      key = now(settings).apiKey ?? key;
    } catch {
      // The file is being replaced: the key before will do until it is turned away.
    }
    return key;
  };
}

function now(settings: TemporalSettings): TemporalSettings {
  return settings.reread?.() ?? settings;
}
