autocmd BufRead,BufNewFile *.ficco setfiletype ficco
