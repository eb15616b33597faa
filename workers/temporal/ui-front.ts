import { randomInt } from 'node:crypto';
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import { refusalOfForeign } from '../../engine/server/gate.ts';

/** Proxy in front of our Temporal server's UI. */
export interface UiFront {
  close(): void;
}

/**
 * The UI answers any request, even from a page elsewhere whose name was made to point here (DNS rebinding), and it can
 * start workflows. So it listens on an address that no page finds, and this proxy forwards only requests that name this
 * machine and come from no other page. Throws EADDRINUSE when the port was taken meanwhile.
 */
export async function openUiFront(
  port: number,
  ui: { readonly host: string; readonly port: number },
): Promise<UiFront> {
  const server = createServer((asked, answer) => {
    const refusal = refusalOfForeign(asked.headers);
    if (refusal === null) return passOn(asked, answer, ui);
    answer.writeHead(refusal.status, { 'content-type': 'text/plain' }).end(`${refusal.message}\n`);
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject).listen({ host: '127.0.0.1', port, exclusive: true }, resolve);
  });
  // Does not keep the process alive.
  server.unref();
  return {
    close() {
      server.close();
      server.closeAllConnections();
    },
  };
}

function passOn(asked: IncomingMessage, answer: ServerResponse, { host, port }: { host: string; port: number }): void {
  const { method, url, headers } = asked;
  const passed = request(
    { host, port, method, path: url, headers: { ...headers, host: `${host}:${port}` } },
    (given) => {
      answer.writeHead(given.statusCode ?? 502, given.headers);
      given.pipe(answer);
    },
  );
  passed.on('error', () => {
    if (!answer.headersSent) answer.writeHead(502, { 'content-type': 'text/plain' });
    answer.end('The Temporal UI does not answer; its server is being started again. Load this page again.\n');
  });
  answer.on('close', () => passed.destroy());
  asked.pipe(passed);
}

/**
 * Address of the UI itself. On Linux all of 127/8 is this machine, so one of 16 million addresses, with a port chosen
 * by the system, cannot be found by trying; elsewhere it is 127.0.0.1, and only the port hides it.
 */
export function hiddenLoopback(platform: NodeJS.Platform = process.platform): string {
  return platform === 'linux' ? `127.${randomInt(1, 255)}.${randomInt(256)}.${randomInt(1, 255)}` : '127.0.0.1';
}
