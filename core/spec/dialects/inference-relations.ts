import { secretHeadersIn } from '../model-access.ts';
import { rotate } from '../report-secrets.ts';
import type { RatchetConfig } from './ratchet.ts';
import type { RelationProblem } from './ratchet-relations.ts';

/** What [inference] says of its servers, taken together. */
export function inferenceRelations({ inference }: RatchetConfig): RelationProblem[] {
  return [...placeRelations(inference), ...headerRelations(inference)];
}

type Written = RatchetConfig['inference'];

const at = (...keys: (string | number)[]) => ['inference', ...keys];

/** Where the servers are is said once. */
function placeRelations({ kind, url, endpoint_id, endpoints_path, api_key_var }: Written): RelationProblem[] {
  const problems: RelationProblem[] = [];
  if (kind === 'module') return problems;
  if (url !== undefined && endpoint_id !== undefined) {
    problems.push({
      paths: [at('endpoint_id'), at('url')],
      expected: 'nothing, or no url: both say where the servers are',
      received: JSON.stringify(endpoint_id),
    });
  }
  if (endpoints_path !== undefined && endpoint_id === undefined) {
    problems.push({
      paths: [at('endpoints_path'), at('endpoint_id')],
      expected: 'an endpoint_id beside it: which of its aliases is meant',
      received: JSON.stringify(endpoints_path),
    });
  }
  if (api_key_var !== undefined && endpoint_id !== undefined) {
    problems.push({
      paths: [at('api_key_var'), at('endpoint_id')],
      expected: 'nothing: each [[endpoint]] names its key itself',
      received: JSON.stringify(api_key_var),
    });
  }
  if (kind === 'openai' && url === undefined && endpoint_id === undefined) {
    problems.push({
      paths: [at('url'), at('kind')],
      expected: 'url or endpoint_id, because kind is "openai": where its servers are',
      received: 'nothing',
    });
  }
  const urls = Array.isArray(url) ? url : [];
  const twice = urls.findIndex((one, i) => urls.indexOf(one) < i);
  if (twice >= 0) {
    problems.push({
      paths: [at('url', twice), at('url')],
      expected: 'each server once',
      received: JSON.stringify(urls[twice]),
    });
  }
  return problems;
}

function headerRelations({ headers }: Written): RelationProblem[] {
  return secretHeadersIn(headers).map((name) => ({
    paths: [at('headers', name), at('headers')],
    expected: 'no header with a key in it: name its environment variable in headers_from_env, or in api_key_var',
    received: 'a value (not repeated here)',
    suggestion: rotate,
  }));
}
