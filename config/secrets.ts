import { isKeptFromEnvironments } from '../core/child-environment.ts';
import type { KeyPath } from './positions.ts';

/** Secrets exist by name only. A config is copied into the store and shown in reports, so a literal one is refused. */

/**
 * Shapes of well-known keys. They meet what models and strangers write, megabytes of it: each begins
 * with letters of its own, or repeats few characters before them, so that the time grows with a text's length and no faster.
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

/** Webhook addresses that are secrets: anyone who has one can post there. A run file with one is refused, with the place it belongs to. */
const secretAddresses: readonly RegExp[] = [
  /\bhooks\.slack(?:-gov)?\.com\/[\w/-]{8,}/, // Slack webhook
  /\bdiscord(?:app)?\.com\/api\/webhooks\/\d+\/[\w-]{16,}/, // Discord webhook
  /\bbot\d{6,16}(?::|%3[Aa])[\w-]{20,}/, // Telegram bot
];

/** `api_key`, `token`, `client_secret`, but neither `max_tokens` nor `api_key_var`. */
const secretName = /(?:^|[_-])(?:key|apikey|token|secret|password|passwd|credentials?|authorization|cookie)$/i;

/** `question_key = "prompt"`: where in a dataset something stands. The name speaks of no access, and its value is a word. */
const columnName = /^(?!.*(?:api|access|auth|secret|private|sign|license|encrypt|client|service)).+_key$/i;
const columnValue = /^[a-z]+(?:[_.-][a-z]+)*$/i;

/** A table whose values are names of environment variables, whatever its keys are: `headers_from_env`. */
const namesVariables = /_from_env$/;

/** Services whose webhook addresses are keys. */
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
 * A text without the secrets in it: whatever has the shape of one, and the given values (of environment variables, say)
 * wherever they stand.
 */
export function withoutSecrets(text: string, known: readonly string[] = []): string {
  let clean = text;
  for (const value of known.toSorted((a, b) => b.length - a.length)) clean = clean.replaceAll(value, hidden);
  for (const shape of [...secretShapes, ...secretAddresses])
    clean = clean.replaceAll(new RegExp(shape.source, `${shape.flags}g`), hidden);
  return clean;
}
const hidden = '[secret]';
/** Shorter ones would tear holes into every text. */
const secretCharsMin = 6;

/** Whether a variable is one that nobody else should read: by its name, or because of what it lets one do. */
export function isSecretVariable(name: string): boolean {
  return secretName.test(name) || isKeptFromEnvironments(name) || /^[a-z]+_proxy$/i.test(name);
}

/** The values that an environment's variables hold under the names of secrets. */
export function secretValues(variables: Readonly<Record<string, string | undefined>>): string[] {
  return Object.entries(variables).flatMap(([name, value]) =>
    value !== undefined && value.length >= secretCharsMin && secretName.test(name) ? [value] : [],
  );
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
