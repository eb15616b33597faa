import { Command, InvalidArgumentError } from '@commander-js/extra-typings';
import { codecKeyVar } from '../../../core/names.ts';
import { RatchetError } from '../../../core/errors.ts';
import { print } from '../../output/print.ts';
import { readPort } from '../../typed/read-port.ts';
import { serverKey } from '../../typed/server-key.ts';

const defaultPort = 8432;

export const codecCommand = new Command('codec')
  .description(
    'a codec server: the Temporal UI and temporal --codec-endpoint show what RATCHET_PAYLOAD_KEY encrypts, to those who have its address or its key; until Ctrl-C',
  )
  .option('--host <address>', `where it listens; others than loopback need a key in ${codecKeyVar}`, '127.0.0.1')
  .option('--port <port>', 'its port', readPort, defaultPort)
  .option(
    '--origin <url...>',
    'where the Temporal UI is, such as http://127.0.0.1:8233: pages of this place may ask',
    readOrigin,
  )
  .action(async ({ host, port, origin = [] }) => {
    const { readPayloadKeys } = await import('../../../workers/temporal/payload-codec.ts');
    const { startCodecServer } = await import('../../../workers/temporal/codec-server.ts');
    const keys = readPayloadKeys();
    if (keys.length === 0) {
      throw new RatchetError(
        'ConfigInvalid',
        'Expected the keys of payloads in RATCHET_PAYLOAD_KEY, or in the file that RATCHET_PAYLOAD_KEY_FILE names; neither is set.',
      );
    }
    const log = (line: string): void => print(`${new Date().toISOString()} ${line}`);
    const server = await startCodecServer({ host, port, keys, key: serverKey(codecKeyVar), origins: origin, log });
    print(`codec server at ${server.url}`);
    print(`keys: ${keys.map(({ id }) => id).join(', ')}; the first encrypts`);
    print(
      origin.length === 0 ? 'no page may ask: --origin names the Temporal UI' : `pages of ${origin.join(', ')} may ask`,
    );
    await new Promise<void>((resolve) => process.once('SIGINT', resolve).once('SIGTERM', resolve));
    await server.close();
  });

function readOrigin(text: string, before: string[] = []): string[] {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url !== null && /^https?:$/.test(url.protocol) && text.replace(/\/$/, '') === url.origin)
    return [...before, url.origin];
  throw new InvalidArgumentError('Expected where a page is, such as http://127.0.0.1:8233, without a path.');
}
