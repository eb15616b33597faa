import { randomInt } from 'node:crypto';
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import { refusalOfForeign } from '../engine/server/gate.ts';

/** What people reach the UI of our own Temporal server by, until it is closed. */
export interface UiFront {
  close(): void;
}

/**
 * The UI answers whoever asks, also a page of another place that made a name of its own lead here (DNS rebinding), and it can start
 * workflows. So it listens where no page finds it, and what people open passes on only what is asked of this machine by name,
 * by nobody else's page. Throws EADDRINUSE where the port was taken meanwhile.
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
  // It keeps no process alive that has nothing else to do.
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
 * Where the UI itself listens. On Linux every address of 127/8 is this machine's, and one of 16 million, with a port that the system chose, is
 * not found by trying; elsewhere it is 127.0.0.1, and the port is all that hides it.
 */
export function hiddenLoopback(platform: NodeJS.Platform = process.platform): string {
  return platform === 'linux' ? `127.${randomInt(1, 255)}.${randomInt(256)}.${randomInt(1, 255)}` : '127.0.0.1';
}
