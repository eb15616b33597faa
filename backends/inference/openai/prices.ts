import { ModelServer } from '../model-server.ts';
import type { EndpointServer } from './endpoint.ts';

/** US dollars for a million tokens. */
export interface Prices {
  readonly input: number;
  readonly output: number;
}

/** Short timeout, since prices are optional. */
const pricesTimeoutMs = 10_000;

/** Prime Inference, the one API whose prices verifiers knows. */
export function isPriced(servers: readonly Pick<EndpointServer, 'baseUrl'>[]): boolean {
  return servers.length > 0 && servers.every(({ baseUrl }) => baseUrl.toLowerCase().includes('pinference.ai'));
}

/**
 * Prices of a model in its server's list of models (`pricing` with `input_usd_per_mtok` and `output_usd_per_mtok`, as
 * in `prime inference models`); null if absent. Throws like any request.
 */
export async function pricesAt(server: EndpointServer, model: string): Promise<Prices | null> {
  const { baseUrl: url, apiKeyVar, headers } = server;
  const asked = new ModelServer(
    { url, apiKeyVar, headers, headersFromEnv: {}, model: null },
    { timeoutMs: pricesTimeoutMs, provider: 'cpu' },
  );
  try {
    const { body } = await asked.get('/v1/models');
    return pricesIn(body, model);
  } finally {
    asked.close();
  }
}

function pricesIn(listed: unknown, model: string): Prices | null {
  const { data } = fieldsOf(listed);
  const found: unknown = Array.isArray(data) ? data.find((one: unknown) => fieldsOf(one)['id'] === model) : undefined;
  const { input_usd_per_mtok: input, output_usd_per_mtok: output } = fieldsOf(fieldsOf(found)['pricing']);
  const [inputUsd, outputUsd] = [numberOf(input), numberOf(output)];
  return inputUsd === null || outputUsd === null ? null : { input: inputUsd, output: outputUsd };
}

function fieldsOf(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

/** Some servers write numbers as texts. */
function numberOf(value: unknown): number | null {
  if (typeof value !== 'number' && typeof value !== 'string') return null;
  const number = value === '' ? NaN : Number(value);
  return Number.isFinite(number) && number >= 0 ? number : null;
}
