import { randomInt } from 'node:crypto';
import { createConnection, createServer } from 'node:net';
import { takeLock } from './held-lock.ts';

/**
 * The default port if it is free, else (or for 0) another free one. An unknown server on the port is never adopted. The
 * port is also reserved against other Ratchets that choose at the same moment, for the life of this process.
 */
export async function choosePort(preferred: number): Promise<number> {
  if (preferred !== 0 && (await isFree(preferred)) && (reserved.has(preferred) || (await reserve(preferred))))
    return preferred;
  for (let attempt = 0; attempt < drawsMax; attempt++) {
    const port = randomInt(drawnFrom, drawnTo);
    if ((await isFree(port)) && (await reserve(port))) return port;
  }
  return systemPort();
}

/**
 * Range of drawn ports, below the one that systems use for outgoing connections (from 32768 on Linux, 49152 on macOS).
 * Another process may take a port between the check and the server's start, or between restarts.
 */
const drawnFrom = 20_000;
const drawnTo = 30_000;
const drawsMax = 20;

async function isFree(port: number): Promise<boolean> {
  return !(await somebodyListens(port)) && (await canListen(port));
}

/**
 * On macOS a second process can listen on loopback beside one that listens everywhere, so trying to listen is not
 * enough.
 */
function somebodyListens(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = createConnection({ host: '127.0.0.1', port });
    const finish = (answer: boolean) => {
      socket.destroy();
      resolve(answer);
    };
    socket.setTimeout(1_000, () => finish(true));
    socket.on('connect', () => finish(true));
    socket.on('error', () => finish(false));
  });
}

async function canListen(port: number): Promise<boolean> {
  return (await listenOnce(port)) !== null;
}

async function systemPort(): Promise<number> {
  const port = await listenOnce(0);
  if (port === null) throw new Error('the system has no free port on 127.0.0.1');
  return port;
}

function listenOnce(port: number): Promise<number | null> {
  return new Promise((resolve) => {
    const server = createServer();
    server.on('error', () => resolve(null));
    server.listen({ host: '127.0.0.1', port, exclusive: true }, () => {
      const address = server.address();
      server.close(() => resolve(address !== null && typeof address === 'object' ? address.port : null));
    });
  });
}

const reserved = new Set<number>();

async function reserve(port: number): Promise<boolean> {
  const result = await takeLock(`port ${port}`, null);
  if ('holder' in result) return false;
  reserved.add(port);
  return true;
}
