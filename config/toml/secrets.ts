import { isKeptFromEnvironments } from '../../core/child-environment.ts';
import type { KeyPath } from './positions.ts';
import { SecretSpellings } from './secret-spellings.ts';

/**
 * Secrets are given by name only. A config is copied into the store and shown in reports, so a literal one is refused.
 */

/**
 * Shapes of well-known keys. They are matched against megabytes of untrusted text: each begins with fixed letters, or
 * repeats few characters before them, so that the time grows only linearly with a text's length.
 */
const secretShapes: readonly RegExp[] = [
  /\bsk-[\w-]{12,}/, // OpenAI, Anthropic, OpenRouter
  /\bhf_\w{12,}/, // Hugging Face
  /\bA(?:KIA|SIA)[0-9A-Z]{12,}/, // AWS access key id
  /\bgh[pousr]_\w{20,}/, // GitHub
  /\bpit_\w{12,}/, // Prime Intellect
  /\bxox[abposr]-[\w-]{10,}/, // Slack
  /\btml-[\w-]{12,}/, // Tinker
  /-----BEGIN [A-Z ]*PRIVATE KEY-----/,
  /\w{1,32}:\/\/[^/\s:@]*:[^/\s@]+@/, // A password in a URL
  /https?:\/\/[^/\s@?#]{1,512}@/, // A token in place of it
  /[?&](?:api[_-]?key|key|token|access[_-]?token|auth|secret|password|signature)=[^&\s#]/i, // A key in a query
];

/**
 * Webhook addresses that are secrets: anyone who has one can post there. A run file with one is refused, with the right
 * place for it.
 */
const secretAddresses: readonly RegExp[] = [
  /\bhooks\.slack(?:-gov)?\.com\/[\w/-]{8,}/, // Slack webhook
  /\bdiscord(?:app)?\.com\/api\/webhooks\/\d+\/[\w-]{16,}/, // Discord webhook
  /\bbot\d{6,16}(?::|%3[Aa])[\w-]{20,}/, // Telegram bot
];

/** `api_key`, `token`, `client_secret`, but neither `max_tokens` nor `api_key_var`. */
const secretName = /(?:^|[_-])(?:key|apikey|token|secret|password|passwd|credentials?|authorization|cookie)$/i;

/** `question_key = "prompt"`: a column of a dataset. The name does not suggest access, and its value is a word. */
const columnName = /^(?!.*(?:api|access|auth|secret|private|sign|license|encrypt|client|service)).+_key$/i;
const columnValue = /^[a-z]+(?:[_.-][a-z]+)*$/i;

/** A table whose values are names of environment variables: `headers_from_env`. */
const namesVariables = /_from_env$/;

const secretHosts =
  /(?:^|\.)(?:hooks\.slack\.com|hooks\.slack-gov\.com|discord(?:app)?\.com|api\.telegram\.org|webhook\.office\.com|outlook\.office(?:365)?\.com|logic\.azure\.com|api\.powerplatform\.com|chat\.googleapis\.com|hooks\.zapier\.com|maker\.ifttt\.com|events\.pagerduty\.com|hooks\.chime\.aws|open\.feishu\.cn|open\.larksuite\.com|oapi\.dingtalk\.com|qyapi\.weixin\.qq\.com|hook\.[\w.]*make\.com|hc-ping\.com|ntfy\.sh|api\.day\.app|webhook\.site|pipedream\.net)$/i;

/** A path segment that looks generated: a bot token, a UUID, or 16 or more characters with digits among them. */
const tokenInPath =
  /^(?:bot)?\d{6,}(?::|%3a)[\w-]{20,}$|^[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}$|^(?=.*\d)(?=.*[a-z])[\w+~=%-]{20,}$/i;
/** A path segment that a person wrote, such as `training-alerts-2026`: words and a number. */
const wordsInPath = /^[a-z]+(?:[-_.]+(?:[a-z]+|\d{1,4}))*$|^v?\d{1,4}$/i;

/** Whether a URL grants access by itself: through a password, a token in its path or query, or a service whose addresses are keys. */
export function isSecretUrl(written: string): boolean {
  if (!URL.canParse(written)) return looksSecret(written);
  const { username, password, hostname, pathname, searchParams, hash } = new URL(written);
  if (username !== '' || password !== '' || secretHosts.test(hostname) || looksSecret(written)) return true;
  if (secretAddresses.some((shape) => shape.test(written))) return true;
  const parts = [...pathname.split('/'), ...searchParams.values(), hash.slice(1)];
  return parts.some((part) => tokenInPath.test(part) && !wordsInPath.test(part));
}

export function looksSecret(value: string): boolean {
  return secretShapes.some((shape) => shape.test(value));
}

/**
 * Removes secrets from a text: anything with the shape of one, and the given values (of environment variables, say) at
 * any place and in the usual spellings.
 */
export function withoutSecrets(text: string, known: readonly string[] = []): string {
  let clean = spellingsOf(known).replacedBy(hidden, text);
  for (const shape of [...secretShapes, ...secretAddresses])
    clean = clean.replaceAll(new RegExp(shape.source, `${shape.flags}g`), hidden);
  return clean;
}
const hidden = '[secret]';
/** Shorter ones would occur in every text. */
const secretCharsMin = 6;

/** Callers clean many texts with one list: its pattern is made once. */
const spellingsByList = new WeakMap<readonly string[], SecretSpellings>();

function spellingsOf(known: readonly string[]): SecretSpellings {
  const made = spellingsByList.get(known) ?? new SecretSpellings(known);
  spellingsByList.set(known, made);
  return made;
}

/** Further names of variables with secrets: `DB_PASS`, `PGPASSWORD`, `SENTRY_DSN`, `STORAGE_CONNECTION_STRING`. */
const secretVariableName =
  /(?:password|passwd|passphrase)$|(?:^|_)(?:pass|dsn|pat|creds|secret_key_base|conn(?:ection)?_?str(?:ing)?)$|._pwd$/i;

function isNamedSecret(name: string): boolean {
  return secretName.test(name) || secretVariableName.test(name);
}

/** Whether a variable must stay secret: by its name, by the access that it gives, or by its value. */
export function isSecretVariable(name: string, value = ''): boolean {
  if (isNamedSecret(name) || isKeptFromEnvironments(name) || /^[a-z]+_proxy$/i.test(name)) return true;
  return withinValue(value).length > 0;
}

/** Secrets among the values of variables: those with the names of secrets, addresses that give access, and their passwords. */
export function secretValues(variables: Readonly<Record<string, string | undefined>>): string[] {
  const values = Object.entries(variables).flatMap(([name, value = '']) => [
    ...(isNamedSecret(name) ? [value] : []),
    ...withinValue(value),
  ]);
  return [...new Set(values)].filter((value) => value.length >= secretCharsMin);
}

/** `Server=db;Password=…`, `host=db password=…`, `AccountKey=…`: settings of a connection, with the password's value. */
const passwordInSettings =
  /(?:^|[;?&\s])(?:password|pwd|accountkey|sharedaccesskey|sharedaccesssignature|client ?secret)\s?=\s?("[^"]+"|'[^']+'|[^;&\s]+)/i;

/** A value that gives access whatever its name, such as that of DATABASE_URL, and the password in it. */
function withinValue(value: string): string[] {
  const [, given] = passwordInSettings.exec(value) ?? [];
  if (given !== undefined) return [value, given.replaceAll(/^["']|["']$/g, '')];
  if (/^https?:/i.test(value)) return isSecretUrl(value) ? [value, passwordOf(value)] : [];
  return passwordInUrl.test(value) ? [value, passwordOf(value)] : [];
}

const passwordInUrl = /^[a-z][\w+.-]*:\/\/[^/\s:@]*:([^/\s@]+)@/i;

function passwordOf(url: string): string {
  const [, written = ''] = passwordInUrl.exec(url) ?? [];
  return decoded(written);
}

function decoded(written: string): string {
  try {
    return decodeURIComponent(written);
  } catch {
    return written; // a percent sign of the password itself
  }
}

/** Every literal secret in a parsed config, by path. */
export function findSecrets(value: unknown, path: KeyPath = []): KeyPath[] {
  if (typeof value === 'string') {
    const [name = '', table] = path.filter((part) => typeof part === 'string').reverse();
    const isNamed = secretName.test(name) && !(table !== undefined && namesVariables.test(table)) && value.length > 0;
    if (isNamed && columnName.test(name) && columnValue.test(value)) return [];
    return looksSecret(value) || isNamed ? [path] : [];
  }
  if (typeof value !== 'object' || value === null || value instanceof Date) return [];
  const entries: [string | number, unknown][] = Array.isArray(value) ? [...value.entries()] : Object.entries(value);
  return entries.flatMap(([key, item]) => [
    ...(typeof key === 'string' && looksSecret(key) ? [path] : []),
    ...findSecrets(item, [...path, key]),
  ]);
}
