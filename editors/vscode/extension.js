// Starts `ficco lsp` and hands it the documents of the language ficco.
"use strict";

const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

function activate() {
  const settings = workspace.getConfiguration("ficco");
  const server = { command: settings.get("command"), args: ["lsp"] };
  client = new LanguageClient("ficco", "ficco", server, {
    documentSelector: [{ language: "ficco" }],
    initializationOptions: {
      ranks: settings.get("ranks"),
      set: settings.get("set"),
      machine: settings.get("machine"),
    },
  });
  return client.start();
}

function deactivate() {
  return client ? client.stop() : undefined;
}

module.exports = { activate, deactivate };
