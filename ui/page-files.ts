import { createHash } from 'node:crypto';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { PageSettings } from './answers.ts';

const root = fileURLToPath(new URL('../', import.meta.url));

/** The page's code and its looks. */
interface PageFiles {
  readonly script: string;
  readonly style: string;
}

let made: Promise<PageFiles> | null = null;

/** Built from its sources and packages once per process, in a fraction of a second. */
export function pageFiles(): Promise<PageFiles> {
  made ??= bundle();
  made.catch(() => (made = null));
  return made;
}

async function bundle(): Promise<PageFiles> {
  // Imported on the page's first request.
  const { build, stop } = await import('esbuild');
  const { outputFiles } = await build({
    absWorkingDir: root,
    entryPoints: ['main.tsx', 'page.css'].map((name) => path.join(root, 'ui/page', name)),
    outdir: 'page',
    bundle: true,
    minify: true,
    write: false,
    format: 'iife',
    platform: 'browser',
    target: 'es2022',
    jsx: 'automatic',
    jsxImportSource: 'preact',
    legalComments: 'none',
    logLevel: 'silent',
  });
  await stop(); // esbuild runs in a process of its own, which is no longer needed
  const textOf = (end: string): string => outputFiles.find((file) => file.path.endsWith(end))?.text ?? '';
  return { script: textOf('.js'), style: textOf('.css') };
}

/** Restricts the page to its own code and server: no text becomes markup, and no other address is requested. */
export const policy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "connect-src 'self'",
  'img-src data:',
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
].join('; ');

/** The page without any data of a run, which needs no token. Its code fetches the data with the token. */
export function pageHtml(): string {
  return html({
    head: '<link rel="stylesheet" href="/page.css">',
    foot: '<script src="/page.js"></script>',
  });
}

/** The whole page in one file, with its data. */
export async function reportHtml(settings: PageSettings, data: unknown): Promise<string> {
  const { script, style } = await pageFiles();
  const code = script.replaceAll('</script', '<\\/script');
  const csp = [
    "default-src 'none'",
    `script-src 'sha256-${digestOf(code)}'`,
    `style-src 'sha256-${digestOf(style)}'`,
    'img-src data:',
    "base-uri 'none'",
    "form-action 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join('; ');
  return html({
    head: `<meta http-equiv="Content-Security-Policy" content="${csp}"><style>${style}</style>`,
    foot: `<script type="application/json" id="settings">${asData(settings)}</script><script type="application/json" id="data">${asData(data)}</script><script>${code}</script>`,
  });
}

function html({ head, foot }: { readonly head: string; readonly foot: string }): string {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>Ratchet</title>
${head}
</head>
<body>
<div id="page"><noscript><p>This page needs JavaScript, which comes with it.</p></noscript></div>
${foot}
</body>
</html>
`;
}

/** JSON that cannot end the element around it. */
function asData(value: unknown): string {
  return JSON.stringify(value).replaceAll('<', '\\u003c').replaceAll('\u2028', '\\u2028');
}

function digestOf(text: string): string {
  return createHash('sha256').update(text).digest('base64');
}
