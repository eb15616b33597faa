/** docs/made/dialects.md: what every field of every dialect takes, its default, and what becomes of it. */
import { type Dialect, type Field, schemaOf } from '../../config/dialects/dialect.ts';
import { dialects } from '../../config/dialects/index.ts';
import { expectedAt } from '../../config/toml/schema-reader.ts';
import { valueAt } from '../../config/toml/tables.ts';
import { keysOfRunFiles } from './run-keys.ts';

export function dialectTables(): string {
  const shown: Dialect[] = [];
  return dialects
    .filter(({ schema }) => schema === undefined)
    .map((dialect) => {
      const same = shown.find(({ fields }) => fields === dialect.fields);
      shown.push(dialect);
      const title = `## \`${dialect.name}\`: ${dialect.title}`;
      return [
        title,
        '',
        ...(same ? [`Its fields and their meanings are those of \`${same.name}\`.`, ''] : sections(dialect)),
      ].join('\n');
    })
    .join('\n');
}

function sections(dialect: Dialect): string[] {
  const rows = Object.entries(dialect.fields)
    .filter(([path]) => !isOtherPlace(path, dialect))
    .map(([path, field]) => row(path, field, dialect));
  const renames = (dialect.renames ?? []).map(({ was, is, since }) => `| \`${was}\` | \`${is}\` | ${since} |`);
  return [
    '| field | takes | default | becomes |',
    '| --- | --- | --- | --- |',
    ...rows,
    '',
    ...(renames.length === 0
      ? []
      : ['Older names:', '', '| was | is | since |', '| --- | --- | --- |', ...renames, '']),
  ];
}

/** Arguments that are read in several places are shown in the default one. */
export function isOtherPlace(path: string, { fields }: Dialect): boolean {
  const name = path.split('.').at(-1)!;
  const isArgument = path === name || path === `trainer.${name}`;
  if (isArgument && Object.hasOwn(fields, `trainer.args.${name}`)) return true;
  return path.startsWith('inference.') && Object.hasOwn(fields, 'inference.args') && !/\.(?:args|gpus)$/.test(path);
}

function row(path: string, field: Field, dialect: Dialect): string {
  const schemaPath = path.split('.').flatMap((part) => (part.endsWith('[]') ? [part.slice(0, -2), 0] : [part]));
  const refused = field.fate.kind === 'refused';
  const takes = refused
    ? '–'
    : (field.schema.meta()?.expected ?? expectedAt(schemaOf(dialect), schemaPath) ?? 'a table');
  return `| \`${path}\` | ${escaped(takes)} | ${defaultOf(field, dialect)} | ${escaped(becomesOf(field))} |`;
}

const ownDefaults = new Map(
  keysOfRunFiles().map(({ table, key, fallback }) => [
    `${table}.${key}`.replaceAll('[]', '').replace(/^\./, ''),
    fallback,
  ]),
);

export function defaultOf({ fate, default: theirs, isRequired }: Field, { defaults }: Dialect): string {
  if (isRequired === true) return 'required';
  if (theirs !== undefined) return escaped(theirs);
  if (fate.kind !== 'becomes' || fate.convert !== undefined) return '–';
  const path = fate.path.replaceAll('[]', '');
  const own = valueAt(defaults, path.split('.'));
  const found = own === undefined ? ownDefaults.get(path) : JSON.stringify(own);
  return found === undefined || found === null ? '–' : `\`${found}\``;
}

export function becomesOf({ fate }: Field): string {
  switch (fate.kind) {
    case 'becomes':
      return `\`${fate.path}\`${fate.convert ? ', converted' : ''}`;
    case 'together':
      return fate.what;
    case 'only':
      return `refused unless ${JSON.stringify(fate.value)}: ${fate.because}`;
    case 'ignored':
      return `nothing, with a warning: ${fate.why}`;
    case 'refused':
      return `refused: ${fate.instead}`;
    default:
      return fate satisfies never;
  }
}

export function escaped(text: string): string {
  return text.replaceAll('|', String.raw`\|`).replaceAll('[[', String.raw`\[[`);
}
