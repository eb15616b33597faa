import { createHmac } from 'node:crypto';
import { lookup, type LookupAddress, type LookupAllOptions } from 'node:dns';
import type { OutgoingHttpHeaders, RequestOptions } from 'node:http';
import { BlockList, isIP, type LookupFunction } from 'node:net';
import { RatchetError } from '../core/errors.ts';
import type { NotifySpec } from '../config/run-spec.ts';
import { type Destination, requestOf } from '../host/ask-server.ts';
import type { AskedServer } from '../host/grants.ts';
import type { StoredNotice } from '../core/rl/notices.ts';
import { plainUrl } from '../host/plain-url.ts';

const answerMsMax = 10_000;

/** Addresses and form of posted notices. */
interface Webhook {
  readonly url: URL;
  readonly server: Destination;
  readonly format: 'slack' | 'json';
  readonly secret: string | null;
  /** The name in the URL may lead to this machine, or into a private network. */
  readonly mayBePrivate: boolean;
}

/**
 * The webhook of a run file with its variables' values; null if it names none. Throws `ConfigInvalid` if a variable is
 * not set.
 */
export function webhookOf(notify: NotifySpec | undefined, environment: Readonly<NodeJS.ProcessEnv>): Webhook | null {
  const { webhook = null, webhookVar = null, secretVar = null } = notify ?? {};
  if (notify === undefined || (webhook === null && webhookVar === null)) return null;
  const url = plainUrl(webhook ?? valueOf('webhook_var', webhookVar!, environment));
  if (url === null)
    throw new RatchetError(
      'ConfigInvalid',
      `${settingOf(notify)}: expected the URL of a webhook, http:// or https:// without a password in it; what came is not repeated here.`,
    );
  return {
    url,
    server: { ...grantedAs(notify), what: `The webhook (${settingOf(notify)})`, url: url.href, environment },
    format: notify.format ?? (url.hostname === 'hooks.slack.com' ? 'slack' : 'json'),
    secret: secretVar === null ? null : valueOf('secret_var', secretVar, environment),
    mayBePrivate: notify.private,
  };
}

/** The servers of a run's notices with their keys, in the form of grants; empty without a webhook. */
export function webhookServers(notify: NotifySpec | undefined): Pick<AskedServer, 'url' | 'keys' | 'as'>[] {
  if (notify === undefined || (notify.webhook ?? notify.webhookVar) === null) return [];
  return [{ ...grantedAs(notify), url: notify.webhook ?? '' }];
}

/**
 * Many services share one origin among all users, so a webhook is granted by its whole URL, or by the variable that
 * holds it.
 */
function grantedAs({ webhook, webhookVar, secretVar }: NotifySpec): Pick<AskedServer, 'keys' | 'as'> {
  const as = webhook === null ? `$${webhookVar}` : new URL(webhook).href;
  return { as, keys: secretVar === null ? [] : [secretVar] };
}

function settingOf({ webhook, webhookVar }: NotifySpec): string {
  return webhook === null ? `[notify] webhook_var = "${webhookVar}"` : '[notify] webhook';
}

function valueOf(key: string, variable: string, environment: Readonly<NodeJS.ProcessEnv>): string {
  const value = environment[variable];
  if (value !== undefined && value !== '') return value;
  throw new RatchetError(
    'ConfigInvalid',
    `[notify] ${key} = "${variable}": expected that environment variable to be set where the metrics are handed on; it is not. Notices wait until it is.`,
  );
}

/**
 * Posts one notice. Throws unless it was accepted: for an answer other than 2xx, none within 10 s, or an address that
 * was not named. A redirect is not followed. The receiver recognizes a repeated notice by its id.
 *
 * The signature follows Standard Webhooks (github.com/standard-webhooks/standard-webhooks, 1.0): `webhook-signature:
 * v1,BASE64` is HMAC-SHA256 of `ID.TIMESTAMP.BODY` with the secret; `whsec_` begins a secret that is written as base64.
 */
export async function postNotice(webhook: Webhook, run: string, notice: StoredNotice, now = Date.now()): Promise<void> {
  const { url, server, format, secret, mayBePrivate } = webhook;
  const body = JSON.stringify(format === 'slack' ? { text: slackText(run, notice) } : { run, ...notice });
  const timestamp = String(Math.floor(now / 1000));
  const id = `${run}.${notice.id}`;
  const isNamed = isIP(hostOf(url)) !== 0 || /(?:^|\.)localhost$/.test(url.hostname);
  const { status, text } = await post(server, body, {
    path: url.pathname + url.search,
    timeout: answerMsMax,
    signal: AbortSignal.timeout(answerMsMax),
    ...(isNamed || mayBePrivate ? {} : { lookup: publicLookup(lookup) }),
    headers: () => ({
      'content-type': 'application/json; charset=utf-8',
      'content-length': Buffer.byteLength(body),
      'user-agent': 'ratchet',
      'webhook-id': id,
      'webhook-timestamp': timestamp,
      ...(secret === null ? {} : { 'webhook-signature': `v1,${signatureOf(secret, `${id}.${timestamp}.${body}`)}` }),
    }),
  });
  if (status >= 200 && status < 300) return;
  throw new Error(`${url.origin} answered ${status}${text === '' ? '' : `: ${text}`}`);
}

export function signatureOf(secret: string, signed: string): string {
  const key = secret.startsWith('whsec_') ? Buffer.from(secret.slice('whsec_'.length), 'base64') : secret;
  return createHmac('sha256', key).update(signed).digest('base64');
}

/** Slack reads `<…>` and `&` (docs.slack.dev/messaging/formatting-message-text, "Escaping text"). */
function slackText(run: string, { kind, step, text }: StoredNotice): string {
  const escaped = text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
  return `*${run}* · step ${step} · ${kind}\n${escaped}`;
}

const answerShownMax = 200;

function post(
  server: Destination,
  body: string,
  options: Omit<RequestOptions, 'headers'> & { readonly headers: () => OutgoingHttpHeaders },
): Promise<{ readonly status: number; readonly text: string }> {
  return new Promise((resolve, reject) => {
    const tooLate = (): Error => new Error(`${server.url} gave no answer within ${answerMsMax / 1000} s`);
    const fail = (error: Error): void => reject(error.name === 'AbortError' ? tooLate() : error);
    const request = requestOf(server, { ...options, method: 'POST', agent: false });
    request.on('response', (response) => {
      let text = '';
      response.setEncoding('utf8');
      const end = (): void =>
        resolve({ status: response.statusCode ?? 0, text: text.slice(0, answerShownMax).replaceAll(/\s+/g, ' ') });
      response.on('data', (piece: string) => {
        text += piece;
        if (text.length < answerShownMax) return;
        end();
        response.destroy(); // an answer may be endless
      });
      response.on('error', fail);
      response.on('end', end);
    });
    request.on('timeout', () => request.destroy(tooLate()));
    request.on('error', fail).end(body);
  });
}

function hostOf({ hostname }: URL): string {
  return hostname.replace(/^\[|\]$/g, '');
}

/**
 * Addresses that IANA lists as not globally reachable (iana-ipv4-special-registry, iana-ipv6-special-registry), multicast, and IPv6 ranges
 * that embed an IPv4 address: a gateway may route these to this machine, and no webhook lives there.
 */
const notPublic = { ipv4: new BlockList(), ipv6: new BlockList() };
for (const [network, prefix] of [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.0.2.0', 24],
  ['192.88.99.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['224.0.0.0', 3],
] as const)
  notPublic.ipv4.addSubnet(network, prefix, 'ipv4');
for (const [network, prefix] of [
  ['::', 32], // unspecified, loopback, IPv4-compatible, IPv4-mapped (checked as IPv4), IPv4-translated
  ['64:ff9b::', 96], // NAT64
  ['64:ff9b:1::', 48],
  ['100::', 32],
  ['2001::', 23], // Teredo, ORCHID, benchmarking and others
  ['2001:db8::', 32],
  ['2002::', 16], // 6to4
  ['3fff::', 20],
  ['5f00::', 16],
  ['fc00::', 7],
  ['fe80::', 9], // link-local, and the site-local of old
  ['ff00::', 8],
] as const)
  notPublic.ipv6.addSubnet(network, prefix, 'ipv6');

export function isPublicAddress(address: string): boolean {
  const family = isIP(address);
  if (family === 0) return false;
  const mapped = family === 6 ? mappedIn(address) : address;
  if (mapped !== null) return !notPublic.ipv4.check(mapped, 'ipv4');
  return !notPublic.ipv6.check(address.replace(/%.*$/, ''), 'ipv6');
}

/** Returns the IPv4 address in `::ffff:a.b.c.d`, in any notation; null for other addresses. */
function mappedIn(address: string): string | null {
  const hostname = new URL(`http://[${address.replace(/%.*$/, '')}]`).hostname;
  const [, high, low] = /^\[::ffff:([0-9a-f]+):([0-9a-f]+)\]$/.exec(hostname) ?? [];
  if (high === undefined || low === undefined) return null;
  return [high, low].flatMap((part) => [Number.parseInt(part, 16) >> 8, Number.parseInt(part, 16) & 255]).join('.');
}

type Resolve = (
  hostname: string,
  options: LookupAllOptions,
  callback: (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void,
) => void;

/** The name is looked up once, and the connection uses that address. */
export const publicLookup =
  (resolve: Resolve): LookupFunction =>
  (hostname, options, callback) => {
    resolve(hostname, { ...options, all: true }, (error, addresses) => {
      if (error) return callback(error, '', 0);
      const found = addresses.find(({ address }) => !isPublicAddress(address));
      const [first] = addresses;
      if (found || !first) {
        const where = found?.address ?? 'no address';
        const message = `${hostname} leads to ${where}, which is not public. If that is meant, say [notify] private = true.`;
        return callback(new Error(message), '', 0);
      }
      if (options.all) return callback(null, addresses);
      callback(null, first.address, first.family);
    });
  };
